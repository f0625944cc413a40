"""Random models as transformers makes and saves them, and ours on their files, run over prompts in
steps of all kinds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ops import reference
from ops.interface import Ops
from parallel.decoder import Decoder
from parallel.groups.group import Group
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.parallel.ranks import CPU
from tests.parallel.steps import Runner

VOCAB = 300
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


def qwen3() -> transformers.PreTrainedModel:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True))


def qwen2_moe() -> transformers.PreTrainedModel:
    """A layer without experts, and one expert a row goes to whatever the router says."""
    shared = {"shared_expert_intermediate_size": 48, "mlp_only_layers": [1], "hidden_size": 128}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**(SIZES | EXPERTS | shared)))


def qwen3_moe() -> transformers.PreTrainedModel:
    """Experts in every second layer."""
    more = {"head_dim": 32, "norm_topk_prob": True, "decoder_sparse_step": 2}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, **more))


MAKERS = {"qwen3": qwen3, "qwen2_moe": qwen2_moe, "qwen3_moe": qwen3_moe}


@dataclass
class Saved:
    folder: str
    hf_config: dict[str, Any]
    model: transformers.PreTrainedModel


def make_and_save(name: str, folder: Path) -> Saved:
    """The model of MAKERS[name], always the same one."""
    torch.manual_seed(1)
    model = MAKERS[name]().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("mlp.gate.weight"):  # transformers makes routers of zeros
            torch.nn.init.normal_(parameter, std=0.15)
    return save(model, folder, "1GB")


def save_qwen2(folder: Path, *, is_tied: bool) -> Saved:
    """Tied in one file, else in several."""
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=is_tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.15,
    )
    saved = save(transformers.Qwen2ForCausalLM(config).eval(), folder, "50MB" if is_tied else "100KB")
    assert (folder / "model.safetensors").exists() == is_tied
    return saved


def save(model: transformers.PreTrainedModel, folder: Path, max_shard_size: str) -> Saved:
    """Make its biases and norms random too, and save it."""
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return Saved(str(folder), json.loads((folder / "config.json").read_text()), model)


def make(saved: Saved, tp: Group, pp: Group, dtype: torch.dtype = torch.float32, ops: Ops = reference) -> Decoder:
    stage = Stage(pp.rank, pp.size, pp if pp.size > 1 else None)
    model = Decoder(read(saved.hf_config), ops=ops, tp=tp, stage=stage, dtype=dtype, device=CPU)
    model.load_weights(saved.folder, {})
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (size,), generator=generator).tolist() for size in (1, 17, 40, 100)]


def logits_in_steps(model: Decoder) -> list[Tensor] | None:
    """Every prompt's logits [tokens, V], computed in mixed steps of whole prompts, chunks and
    single tokens.
    """
    sequences = prompts()
    runner = Runner(model, len(sequences))
    cuts = [[1], [1] * 17, [16, 1, 1, 22], [33, 60, 7]]
    done = [0] * len(sequences)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    while any(cuts):
        rows = {
            index: (done[index], sequences[index][done[index] : done[index] + cut.pop(0)])
            for index, cut in enumerate(cuts)
            if cut
        }
        logits = runner.step(rows)
        for index, (_, tokens) in rows.items():
            done[index] += len(tokens)
        if logits is not None:
            for index, part in zip(rows, logits.split([len(tokens) for _, tokens in rows.values()]), strict=True):
                parts[index].append(part)
    return [torch.cat(each) for each in parts] if parts[0] else None
