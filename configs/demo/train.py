"""Trains the demo checkpoint from nothing: tokenizer, weights and held-out questions, in the
Hugging Face layout.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from data import Conversation, held_out_records, training_conversations
from evaluate import evaluate
from tokenizer import VOCAB_SIZE, train_tokenizer
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

SEED = 20
HELD_OUT_PER_TASK = 26
ROW_LENGTH = 512
ROWS = 8
MUON_LEARNING_RATE = 5e-3
ADAMW_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 50


@dataclass(frozen=True)
class Cycle:
    """One rise and fall of the learning rate."""

    num_steps: int
    peak: float  # in learning rates
    descent: float  # the share of its steps in which it falls to zero


CYCLES = (
    Cycle(num_steps=1500, peak=1.0, descent=0.4),
    Cycle(num_steps=1200, peak=0.5, descent=1.0),
    Cycle(num_steps=340, peak=0.4, descent=220 / 340),
    Cycle(num_steps=275, peak=0.25, descent=0.75),
    Cycle(num_steps=400, peak=0.15, descent=0.9),
)
MESSAGE = re.compile(r"(<\|im_start\|>(\w+)\n)(.*?<\|im_end\|>)(\n)", re.DOTALL)  # of a rendered conversation


@dataclass(frozen=True)
class Batch:
    """Packed conversations, each tensor [ROWS, ROW_LENGTH]."""

    ids: torch.Tensor
    positions: torch.Tensor  # in the conversation, not in the row
    documents: torch.Tensor  # which conversation of its row a token belongs to, from 1; 0 is padding
    weights: torch.Tensor  # float32, of each token's loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the checkpoint to")
    parser.add_argument("--after", type=Path, help="begin with the last cycle, and with the weights of this folder")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)

    tokenizer = train_tokenizer(SEED)
    model = Qwen2ForCausalLM(model_config(tokenizer))
    cycles = list(enumerate(CYCLES))
    if arguments.after is not None:
        model.load_state_dict(Qwen2ForCausalLM.from_pretrained(arguments.after, dtype=torch.float32).state_dict())
        cycles = cycles[-1:]
    print(f"{model.num_parameters():,} parameters", flush=True)
    model.model.compile()  # two to three times as fast: most of the time goes to small element-wise operations
    for index, cycle in cycles:
        train(model, batches(tokenizer, index), cycle)
        model.to(torch.bfloat16).to(torch.float32)  # what is saved is what was trained
    model.to(torch.bfloat16)
    save(arguments.out, model, tokenizer, held_out_records(SEED, HELD_OUT_PER_TASK))
    evaluate(arguments.out, torch.float32)


def model_config(tokenizer: Qwen2Tokenizer) -> Qwen2Config:
    """Four query heads, two key-value heads, four layers: enough to shard over four workers in
    either direction.
    """
    return Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )


def encode(tokenizer: Qwen2Tokenizer, conversation: Conversation) -> tuple[list[int], list[float]]:
    """Token ids of a conversation and the weights of their losses.

    Only the answers with their <|im_end|> are learned. An answer of n tokens weighs sqrt(n), not n,
    so that the long ones do not drown a sum of two digits.
    """
    ids: list[int] = []
    weights: list[float] = []
    messages, tools = conversation
    rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    for head, role, body, tail in MESSAGE.findall(rendered):
        parts = [tokenizer.encode(part) for part in (head, body, tail)]
        weight = len(parts[1]) ** -0.5 if role == "assistant" else 0.0
        ids += [token_id for part in parts for token_id in part]
        weights += [0.0] * len(parts[0]) + [weight] * len(parts[1]) + [0.0] * len(parts[2])
    return ids, weights


def batches(tokenizer: Qwen2Tokenizer, cycle: int) -> Iterator[Batch]:
    """Rows packed with whole conversations, each the first of those waiting that fits."""
    encoded = (encode(tokenizer, conversation) for conversation in training_conversations(SEED, cycle))
    fitting = (pair for pair in encoded if len(pair[0]) <= ROW_LENGTH)
    waiting = [next(fitting) for _ in range(32)]
    while True:
        ids = np.full((ROWS, ROW_LENGTH), tokenizer.pad_token_id)
        positions, documents = np.zeros_like(ids), np.zeros_like(ids)
        weights = np.zeros_like(ids, dtype=np.float32)
        for row in range(ROWS):
            filled, document = 0, 0
            while (index := first_fit(waiting, ROW_LENGTH - filled)) is not None:
                new_ids, new_weights = waiting.pop(index)
                waiting.append(next(fitting))
                place = slice(filled, filled + len(new_ids))
                document += 1
                filled += len(new_ids)
                ids[row, place], weights[row, place] = new_ids, new_weights
                positions[row, place], documents[row, place] = np.arange(len(new_ids)), document
        yield Batch(*(torch.from_numpy(array) for array in (ids, positions, documents, weights)))


def first_fit(waiting: list[tuple[list[int], list[float]]], room: int) -> int | None:
    return next((index for index, (ids, _) in enumerate(waiting) if len(ids) <= room), None)


def train(model: Qwen2ForCausalLM, source: Iterator[Batch], cycle: Cycle) -> None:
    """Muon for the matrices of the layers, AdamW for the embedding, norms and biases."""
    named = dict(model.model.named_parameters())
    matrices = [parameter for name, parameter in named.items() if name.startswith("layers") and parameter.ndim == 2]
    others = [parameter for name, parameter in named.items() if not (name.startswith("layers") and parameter.ndim == 2)]
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_LEARNING_RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=ADAMW_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: share(step, cycle)) for each in optimizers]
    model.train()
    start, losses = time.monotonic(), []
    for step in range(cycle.num_steps):
        loss = loss_of(model, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        model.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - start
            left = seconds / (step + 1) * (cycle.num_steps - step - 1)
            mean = sum(losses[-50:]) / 50
            print(f"step {step + 1}/{cycle.num_steps}  loss {mean:.4f}  {seconds:.0f} s, {left:.0f} s left", flush=True)


def share(step: int, cycle: Cycle) -> float:
    """The share of the learning rates at a step: a warm-up, a plateau and a descent to zero."""
    left = (cycle.num_steps - step) / (cycle.num_steps * cycle.descent)
    return cycle.peak * min(1.0, (step + 1) / WARM_UP_STEPS, left)


def loss_of(model: Qwen2ForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean of the answers' cross entropy; a token attends to the earlier ones of its own
    document.
    """
    causal = torch.ones(ROW_LENGTH, ROW_LENGTH, dtype=torch.bool).tril()
    mask = (batch.documents[:, None, :] == batch.documents[:, :, None]) & causal
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=mask[:, None], use_cache=False
        ).last_hidden_state
        learned = batch.weights[:, 1:] > 0
        logits = model.lm_head(hidden[:, :-1][learned])
    losses = cross_entropy(logits.float(), batch.ids[:, 1:][learned], reduction="none")
    weights = batch.weights[:, 1:][learned]
    return (losses * weights).sum() / weights.sum()


def save(folder: Path, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, records: list[dict]) -> None:
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    (folder / "heldout.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
