"""Steps of models, estimated launch by launch: `python -m tests.benchmarks.gpu --estimate`."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.worker.graphs.graphs import MAX_HISTORY, context_limits, mixed_sizes
from engine.worker.head.sampler import DRAW, choose, spread_logprobs
from ops import kernels
from ops.interface import AttentionMetadata, Ops
from parallel.decoder import Decoder
from parallel.groups.group import SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.benchmarks.gpu.estimate.costs import HOST_GRAPH, HOST_LAUNCH, LINEARS, Step, seconds
from tests.benchmarks.gpu.estimate.gpus import GPUS, Gpu
from tests.benchmarks.gpu.estimate.launches import Launch, recording
from tests.benchmarks.gpu.shapes import SHAPES

META = torch.device("meta")
LONGEST = 32768
NUM_TOP = 5  # logprobs of each row that asks for any
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 256, 2048  # as configured if nothing else is
MIXED = ((8, 56), (64, 150), (200, 500), (64, 1200), (0, 2048))  # rows, and those of a prompt beside them


class _Shapes:
    """Weights without memory."""

    def __init__(self, shapes: Any) -> None:
        self._shapes = shapes

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        whole = torch.empty(self._shapes[name], dtype=torch.bfloat16, device=META)
        return whole[rows] if columns is None else whole[rows, columns]

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        return self.read(f"{name}.weight", rows, columns)


@dataclass(frozen=True, slots=True)
class Estimate:
    launches: int
    seconds: float  # of the device
    host: float  # seconds, which go by beside them
    floor: float  # bytes of weights and cache, or operations, at the device's rates
    by_kernel: dict[str, float]  # seconds


def make_model(hf_config: dict[str, Any], ops: Ops = kernels) -> Decoder:
    """On `meta`. Raises UnsupportedModel."""
    config = read(hf_config)
    model = Decoder(config, ops=ops, tp=SingleGroup(), stage=Stage(0, 1, None), dtype=torch.bfloat16, device=META)
    weights: Any = _Shapes(config.shapes())
    model.load(weights)
    return model


def estimate(model: Decoder, step: Step, gpu: Gpu) -> Estimate:
    """A step of as many sequences with one row each, and of a prompt's rows."""
    num_sampled = step.rows + (step.chunk > 0)
    rows, metadata = _inputs(model, step)
    cache = torch.empty(64, model.num_kv_heads, 16, model.head_dim, dtype=torch.bfloat16, device=META)
    with torch.inference_mode(), recording(gpu) as launches:
        hidden = model.forward(rows, None, rows, [(cache, cache)] * model.num_layers, metadata)
        if step.chunk and step.has_graph:
            torch.empty_like(hidden).copy_(hidden)
        num_of_layers = len(launches)
        _sample(model, hidden[:num_sampled], step)
    taken: Counter[str] = Counter()
    for launch in launches:
        taken[launch.kernel] += seconds(launch, step, gpu)
    num_launched = len(launches) * (not step.has_graph)
    if step.has_graph and step.asks == "logprobs":  # which no graph samples
        num_launched = len(launches) - num_of_layers
    host = HOST_GRAPH * step.has_graph + num_launched * HOST_LAUNCH
    return Estimate(len(launches), taken.total(), host, _floor(model, launches, step, gpu), dict(taken.most_common()))


def _sample(model: Decoder, hidden: Tensor, step: Step) -> None:
    num_rows = len(hidden)
    rows, logits = _ints(num_rows), model.logits(hidden)
    raw = logits[rows.long()] if step.asks == "logprobs" else None
    if step.asks == "penalties":
        floats = torch.empty(num_rows, device=META)
        kernels.apply_penalties(logits, _ints(MAX_HISTORY), rows, rows, rows, floats, floats, floats)
    tokens = choose(logits, _wanted(num_rows), kernels, step.draws)[0]
    if step.asks == "logprob":
        kernels.token_logprobs(logits, tokens, 0)
    if raw is not None:
        spread_logprobs(raw, rows.long(), tokens, kernels, NUM_TOP)


def _inputs(model: Decoder, step: Step) -> tuple[Tensor, AttentionMetadata]:
    """The step's rows, or those that its graph has."""
    num_rows, num_sequences = step.rows + step.chunk, step.rows + (step.chunk > 0)
    longest = max(step.context, step.chunk)
    if step.has_graph and step.chunk:
        num_rows = next(size for size in mixed_sizes(MAX_NUM_BATCHED_TOKENS) if size >= num_rows)
        num_sequences, longest = MAX_NUM_SEQS + 1, LONGEST
    elif step.has_graph:
        longest = next(limit for limit in context_limits(LONGEST) if limit >= longest)
    return _ints(num_rows), AttentionMetadata(
        _ints(num_sequences + 1),
        _ints(num_sequences),
        _ints(num_sequences, -(-longest // 16)),
        _ints(num_rows),
        max_query_len=max(1, step.chunk),
        max_context_len=longest,
        arrivals=None if step.chunk or not step.has_graph else _ints(step.rows, model.num_kv_heads),
    )


def _floor(model: Decoder, launches: list[Launch], step: Step, gpu: Gpu) -> float:
    weights = [launch.values for launch in launches if launch.kernel in LINEARS]
    num_bytes = float(sum(each["weight"].nbytes for each in weights))
    num_bytes += 4.0 * step.rows * step.context * model.num_layers * model.num_kv_heads * model.head_dim
    num_rows = step.rows + step.chunk  # without padding
    operations = sum(2.0 * min(each["x"].shape[0], num_rows) * each["weight"].numel() for each in weights)
    return max(num_bytes / gpu.bytes_per_s, operations / gpu.operations_per_s)


def _wanted(num_rows: int) -> dict[str, Tensor]:
    floats = {"temperature", "top_p", "min_p"}
    return {
        name: torch.empty(
            num_rows,
            dtype=torch.float32 if name in floats else torch.int64 if name == "seed" else torch.int32,
            device=META,
        )
        for name in DRAW
    }


def _ints(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.int32, device=META)


def config_of(shape: str) -> dict[str, Any]:
    """shape: of SHAPES, or a folder with a config.json."""
    known = SHAPES.get(shape)
    return json.loads((Path(shape) / "config.json").read_text()) if known is None else known


def lines(shapes: list[str], gpu_name: str, batches: list[int], context: int) -> Iterator[str]:
    """A table. shapes: of SHAPES, or folders with a config.json."""
    gpu = GPUS[gpu_name]
    yield f"{gpu_name}, bf16, context {context}: estimated from what kernels move and multiply, not measured"
    yield f"{'step':<46}{'launches':>9}{'host':>9}{'ms':>9}{'floor':>9}{'times':>7}  most of it, ms"
    for shape in shapes:
        model = make_model(config_of(shape))
        steps = {f"batch {batch}": Step(batch, context) for batch in batches}
        steps["batch 1, greedy"] = Step(1, context, draws="greedy")
        steps["batch 64, greedy"] = Step(64, context, draws="greedy")
        steps["batch 64, top-k, top-p"] = Step(64, context, draws="any")
        for rows in (1, 64):
            steps[f"batch {rows}, top-k, top-p, penalties"] = Step(rows, context, draws="any", asks="penalties")
            steps[f"batch {rows}, its tokens' logprobs"] = Step(rows, context, draws="any", asks="logprob")
            steps[f"batch {rows}, logprobs"] = Step(rows, context, asks="logprobs")
        for rows, chunk in MIXED:
            name = f"batch {rows}, prompt {chunk}" if rows else f"prompt {chunk}"
            for has_graph in (False, True):
                step = Step(rows, context if rows else 0, chunk=chunk, has_graph=has_graph)
                steps[name if has_graph else f"{name}, launched"] = step
        for name, step in steps.items():
            each = estimate(model, step, gpu)
            most = ", ".join(f"{kernel} {1e3 * taken:.2f}" for kernel, taken in list(each.by_kernel.items())[:4])
            times = each.seconds / each.floor
            name = f"{Path(shape).name} {name}"
            taken = f"{1e3 * each.host:>9.2f}{1e3 * each.seconds:>9.2f}{1e3 * each.floor:>9.2f}"
            yield f"{name:<46}{each.launches:>9}{taken}{times:>7.2f}  {most}"
