"""Random models as transformers makes and saves them, and ours on their files, run over prompts in steps of all kinds."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ops import reference
from ops.interface import Ops
from parallel.group import Group
from parallel.models import build
from parallel.models.decoder import Decoder
from parallel.pipeline import Stage
from tests.parallel.ranks import CPU
from tests.parallel.steps import Runner

VOCAB = 300


@dataclass
class Saved:
    folder: str
    hf_config: dict[str, Any]
    model: transformers.PreTrainedModel


def save(model: transformers.PreTrainedModel, folder: Path, max_shard_size: str) -> Saved:
    """Make its biases and norms random too, and save it."""
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return Saved(str(folder), json.loads((folder / "config.json").read_text()), model)


def make(saved: Saved, tp: Group, pp: Group, dtype: torch.dtype = torch.float32, ops: Ops = reference) -> Decoder:
    stage = Stage(pp.rank, pp.size, pp if pp.size > 1 else None)
    model = build(saved.hf_config, ops=ops, tp=tp, stage=stage, dtype=dtype, device=CPU)
    model.load_weights(saved.folder)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (size,), generator=generator).tolist() for size in (1, 17, 40, 100)]


def logits_in_steps(model: Decoder) -> list[Tensor] | None:
    """Every prompt's logits [tokens, V], computed in mixed steps of whole prompts, chunks and single tokens."""
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
