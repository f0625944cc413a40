"""A runner of a tiny Qwen2 with random weights, from its parts: needs no configuration, so that it
runs wherever torch does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.outputs import SamplerOutput
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import CacheShape, make_cache
from engine.worker.device.pick import pick_device
from engine.worker.model_runner import ModelRunner
from ops import quantizing
from ops.interface import Ops, Quantization
from parallel.decoder import Decoder
from parallel.groups.group import Group, SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.engine.worker.steps import BLOCK_SIZE, Part, floats, ints, make_step, pairs
from tests.ops.kernels.where import IS_INTERPRETED

VOCAB_SIZE = 250
MAX_MODEL_LEN = 96
NUM_BLOCKS = 40
Execute = Callable[[ExecuteModelRequest], SamplerOutput | None]
Bits = list[tuple[bytes, ...]]  # of a sequence: token and logprobs, an entry a token


@dataclass(frozen=True)
class Shape:
    head_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_experts: int = 0  # in the place of each layer's MLP; 0: it is one
    quantization: Quantization | None = None


def hf_config(head_dim: int, vocab_size: int, num_experts: int = 0) -> dict[str, object]:
    """What config.json says of it."""
    experts = {
        "num_experts": num_experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }
    return (experts if num_experts else {}) | {
        "architectures": ["Qwen3MoeForCausalLM" if num_experts else "Qwen2ForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 1 if IS_INTERPRETED else 2,  # the kernels are the same
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "intermediate_size": 96,
        "vocab_size": vocab_size,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 0,
    }


def make_runner(
    ops: Ops, device: torch.device, shape: Shape, tp: Group | None = None, stage: Stage | None = None
) -> ModelRunner:
    """With an empty cache. tp: what it shares the layers with; stage: which of the layers it
    has.
    """
    tp, stage = tp or SingleGroup(), stage or Stage(0, 1, None)
    ops = ops if shape.quantization is None else quantizing(ops, shape.quantization)
    model = Decoder(
        read(hf_config(shape.head_dim, VOCAB_SIZE, shape.num_experts)),
        ops=ops,
        tp=tp,
        stage=stage,
        dtype=shape.dtype,
        device=device,
    )
    model.load_dummy_weights(seed=3)
    cells = CacheShape(model.num_layers, model.num_kv_heads, model.head_dim, shape.cache_dtype)
    cache = make_cache(cells, NUM_BLOCKS, 0, pick_device(device.type))
    return ModelRunner(model, cache, device=pick_device(device.type), speaks=stage.is_last and tp.rank == 0)


def execute_on(runner: ModelRunner) -> Execute:
    def execute(request: ExecuteModelRequest) -> SamplerOutput | None:
        with torch.inference_mode():
            return runner.launch(request).result()

    return execute


def generate(execute: Execute, prompts: list[list[int]], num_tokens: int, chunk: int = 1000) -> list[Bits]:
    """Prompts together, `chunk` of their tokens a step, each decoded as soon as it is computed;
    greedy and seeded by turns.
    """
    blocks_each = -(-(max(map(len, prompts)) + num_tokens) // BLOCK_SIZE)
    starts = [0] * len(prompts)
    sequences = [list(prompt) for prompt in prompts]
    bits: list[Bits] = [[] for _ in prompts]
    step = 0
    while any(len(line) < num_tokens for line in bits):
        batch = [index for index, line in enumerate(bits) if len(line) < num_tokens]
        parts = []
        for index in batch:
            end = min(starts[index] + chunk, len(sequences[index]))
            samples = int(end == len(sequences[index]))
            parts.append(Part(sequences[index][:end], starts[index], _blocks(index, blocks_each), num_samples=samples))
            starts[index] = end
        sampled = [index for index, part in zip(batch, parts, strict=True) if part.num_samples]
        output = execute(_step(step, parts, prompts, sampled))
        assert output is not None
        assert output.is_finite.all()
        columns = output.token_ids, output.logprobs, output.ranks, output.top_ids, output.top_logprobs
        for row, index in enumerate(sampled):
            sequences[index].append(int(output.token_ids[row]))
            bits[index].append(tuple(column[row].tobytes() for column in columns))
        step += 1
    return bits


def decode_carrying(runner: ModelRunner, prompts: list[list[int]], num_tokens: int) -> list[Bits]:
    """As `generate` with whole prompts; no step is told what the one before has sampled, and all
    are launched at once.
    """
    lengths = [len(prompt) for prompt in prompts]
    blocks_each = -(-(max(lengths) + num_tokens) // BLOCK_SIZE)
    everyone = list(range(len(prompts)))
    pending = []
    for step in range(num_tokens):
        parts = [
            Part([*prompt, *[0] * step], 0 if step == 0 else lengths[index] + step - 1, _blocks(index, blocks_each))
            for index, prompt in enumerate(prompts)
        ]
        request = _step(step, parts, prompts, everyone)
        if step:
            steps = np.full(len(everyone), request.step - 1, np.int32)
            request = replace(request, carried_steps=steps, carried_rows=pairs(*zip(everyone, everyone, strict=True)))
        with torch.inference_mode():
            pending.append(runner.launch(request))
    bits: list[Bits] = [[] for _ in prompts]
    for launched in pending:
        output = launched.result()
        assert output is not None
        columns = output.token_ids, output.logprobs, output.ranks, output.top_ids, output.top_logprobs
        for index in everyone:
            bits[index].append(tuple(column[index].tobytes() for column in columns))
    return bits


def _blocks(index: int, blocks_each: int) -> list[int]:
    return list(range(1 + index * blocks_each, 1 + (index + 1) * blocks_each))


def _step(step: int, parts: list[Part], prompts: list[list[int]], sampled: list[int]) -> ExecuteModelRequest:
    """Rows of `sampled` sequences: the same columns for a sequence whoever is beside it."""
    lengths = [len(part.token_ids) for part in parts if part.num_samples]
    columns = SamplingColumns.of_plain_rows(
        len(sampled),
        temperature=floats(*(1.5 * (len(prompts[index]) % 2) for index in sampled)),
        top_p=floats(*(0.9 if len(prompts[index]) % 3 == 0 else 1.0 for index in sampled)),
        seed=np.array([len(prompts[index]) for index in sampled], np.uint64),
        position=ints(*lengths),
        logprob_counts=np.full(len(sampled), 3, np.int32),
    )
    return make_step(step, parts, sampling=columns)
