"""Seconds of a launch: what it moves and multiplies at the rates of the device, as far as its
programs fill that, and what each launch costs besides.

Few programs cannot ask for as many bytes at once as the memory takes to answer: then their latency
sets the rate. The constants are estimates; a run on a device shows where they err.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ops.interface import Draws
from ops.kernels.attention.decode import UNROLLED
from ops.kernels.attention.softmax import SPLIT
from ops.kernels.logits.rows import BLOCK
from ops.kernels.matmul.tiles import FEW_ROWS
from tests.benchmarks.gpu.estimate.gpus import Gpu
from tests.benchmarks.gpu.estimate.launches import Launch

GAP = 1.5e-6  # seconds between two kernels of a graph, of which the second waits for the first
LATENCY = 0.8e-6  # of a read of memory
RAMP = 2 * LATENCY  # an address is read, then what lies there; the last results are written
PASS = 0.75e-6  # of one program over a chunk of a row, with sums over all its threads
ASKED = 8 << 10  # bytes that a program of a simple kernel has on their way
SIMPLE_RESIDENT = 8  # of its programs, on a processor
PROCESSOR_BYTES_PER_S = 1.1e11  # that one can read at most: 64 bytes a cycle
CHAINED_GAP = 0.7e-6  # where the second has been started before, and waits: an assumption as GAP is
FETCHED = 0.4e-6  # less, if the first weights are in the cache before the wait ends: an assumption
HOST_LAUNCH = 37e-6  # of the host, for a kernel that is launched from Python: an assumption, at the least
HOST_GRAPH = 0.2e-3  # to fill the buffers of a step's two graphs and replay them: an assumption
DRAW_PASSES = 6  # the largest; over the blocks' sums: running ones, the whole, the token's block, its start, the block
PRODUCTS = ("torch linear", "torch mm", "torch addmm")  # cuBLAS's
DECODES = ("decode_kernel", "hopper_decode_kernel")
LINEARS = ("linear_kernel", "qkv_kernel")
COUNTED = 512  # tokens of a history that are counted together, by a read and then additions in memory
TOP_PASSES = 8  # of torch's topk over numbers of 64 bits, 8 bits each: an assumption
SECTOR = 32  # bytes of memory that are read or written together
KEPT_BLOCKS = 64  # of 64 tokens, in which the threshold of top_k or top_p can be: as if k were 20 to 50


@dataclass(frozen=True, slots=True)
class Step:
    """What a launch's work follows from beside its arguments."""

    rows: int  # of as many sequences
    context: int  # of each of these
    draws: Draws = "unfiltered"  # "any": rows have top_k and top_p
    chunk: int = 0  # the first rows of a prompt, beside the others
    has_graph: bool = True  # not launched kernel by kernel
    asks: Literal["", "penalties", "logprob", "logprobs"] = ""  # each row: logprob of its token; of five, by launches


@dataclass(frozen=True, slots=True)
class Cost:
    num_bytes: float
    num_operations: float = 0.0
    programs: int = 0  # that have work
    asked: int = ASKED  # bytes that one has on their way
    resident: int = SIMPLE_RESIDENT  # of them, on a processor
    passes: int = 0  # one after the other
    waiting: float = 0.0  # seconds besides


def seconds(launch: Launch, step: Step, gpu: Gpu) -> float:
    cost = cost_of(launch, step, gpu)
    programs = max(cost.programs, 1)
    at_once = min(programs, gpu.processors * cost.resident)
    reading = min(programs, gpu.processors) * PROCESSOR_BYTES_PER_S
    moving = cost.num_bytes / min(gpu.bytes_per_s, at_once * cost.asked / LATENCY, reading)
    waves = programs / (gpu.processors * cost.resident)
    filled = waves / math.ceil(waves) if waves > 1 else min(1.0, programs / gpu.processors)
    multiplying = cost.num_operations / (gpu.operations_per_s * filled)
    return _gap(launch) + RAMP + max(moving, multiplying) + cost.passes * PASS + cost.waiting


def _gap(launch: Launch) -> float:
    values = launch.values
    if not values.get("launch_pdl"):
        return GAP
    fetches = launch.kernel in LINEARS and values["KIND"] == "plain" and values["ROWS"] <= FEW_ROWS.value
    return CHAINED_GAP - (FETCHED if fetches else 0.0)


def cost_of(launch: Launch, step: Step, gpu: Gpu) -> Cost:
    values = launch.values
    if not step.rows and launch.kernel in (*DECODES, "fold_kernel"):
        return Cost(0.0, programs=launch.programs)
    if launch.kernel in LINEARS:
        return _linear(launch, gpu)
    if launch.kernel in (*DECODES, "prefill_kernel"):
        return _attention(launch, step, gpu)
    if launch.kernel in ("top_k_kernel", "top_p_kernel", "keep_kernel"):
        return _threshold(launch, step)
    if launch.kernel == "torch embedding":
        return Cost(2 * _num_bytes(values["tensors"][-1:]), programs=gpu.processors)
    if launch.kernel in PRODUCTS:
        return _product(values["tensors"], gpu)
    if launch.kernel == "torch topk":
        return Cost(TOP_PASSES * _num_bytes(values["tensors"][:1]), programs=SIMPLE_RESIDENT * gpu.processors)
    if launch.kernel.startswith("torch"):
        return Cost(_num_bytes(values["tensors"]), programs=SIMPLE_RESIDENT * gpu.processors)
    if launch.kernel == "norm_kernel":
        return _norm(launch)
    if launch.kernel == "rotary_kernel":
        return Cost(3 * _num_bytes([values["qkv"]]) if "qkv" in values else 0.0, programs=launch.programs)
    if launch.kernel == "fold_kernel":
        splits = math.ceil(step.context / SPLIT.value)
        num_bytes = 4.0 * step.rows * splits * values["HEADS"] * values["HEAD_DIM"]
        return Cost(num_bytes, programs=launch.programs, asked=4 * min(splits, 8) * values["HEAD_DIM"], resident=32)
    if launch.kernel == "count_kernel":
        waiting = 2 * LATENCY * math.ceil(step.context / COUNTED)
        return Cost(4.0 * step.rows * step.context, programs=launch.programs, waiting=waiting)
    if launch.kernel == "penalty_kernel":  # all counts, and the logits of tokens that were counted
        touched = 2.0 * SECTOR * step.rows * min(step.context, values["VOCAB"])
        return Cost(_num_bytes([values["counts"]]) + touched, programs=launch.programs)
    if launch.kernel == "draw_kernel":  # of masses only the block of the token
        return Cost(_num_bytes([values["sums"]]), programs=launch.programs, passes=DRAW_PASSES)
    return Cost(_num_bytes([each for each in values.values() if isinstance(each, Tensor)]), programs=launch.programs)


def _linear(launch: Launch, gpu: Gpu) -> Cost:
    values = launch.values
    x, weight = values["x"], values["weight"]
    halves = 2 if values.get("GATED") else 1
    if launch.kernel == "qkv_kernel":
        num_out, written = weight.shape[0], x.shape[0] * weight.shape[0] * x.element_size()
    else:
        num_out, written = values["NUM_OUT"], values["output"].nbytes
    tile = (values["OUTS"] + values["ROWS"]) * values["INPUTS"] * weight.element_size()
    asked = (
        (values["STAGES"] - 1) * (values["OUTS"] * halves + values["ROWS"]) * values["INPUTS"] * weight.element_size()
    )
    resident = max(1, min(gpu.shared // (values["STAGES"] * tile * halves + 1024), 16 // values["num_warps"]))
    rows = math.ceil(x.shape[0] / values["ROWS"]) * values["ROWS"]  # whole tiles are multiplied
    return Cost(
        _num_bytes([x, weight]) + written,
        2.0 * rows * num_out * halves * x.shape[1],
        launch.programs,
        asked,
        resident,
    )


def _product(tensors: list[Tensor], gpu: Gpu) -> Cost:
    """At the device's rates."""
    first, second = sorted((each for each in tensors[:-1] if each.dim() == 2), key=Tensor.numel)[-2:]
    inputs = math.sqrt(first.numel() * second.numel() / tensors[-1].numel())
    return Cost(_num_bytes(tensors), 2.0 * tensors[-1].numel() * inputs, programs=SIMPLE_RESIDENT * gpu.processors)


def _attention(launch: Launch, step: Step, gpu: Gpu) -> Cost:
    values = launch.values
    keys, query = values["keys"], values["query"]
    heads, head_dim = values["KV_HEADS"], values["HEAD_DIM"]
    item = 1 if values["FLOAT8"] else keys.element_size()
    asked = max(1, values["STAGES"] - 1) * 2 * values["TILE"] * head_dim * item
    if launch.kernel in DECODES:
        num_bytes = 2 * step.rows * step.context * heads * head_dim * item
        num_bytes += 2 * _num_bytes([query[: step.rows]])
        items = step.rows * heads * math.ceil(step.context / SPLIT.value)
        operations = 4.0 * values.get("ROWS", 16) * step.rows * heads * step.context * head_dim
        programs, resident = min(items, launch.programs), math.ceil(launch.programs / gpu.processors)
        return Cost(num_bytes, operations, programs, asked, resident, waiting=_folding(launch, step))
    pairs = step.chunk * (step.chunk + 1) / 2
    return Cost(3 * _num_bytes([query]), 4.0 * pairs * query.shape[1] * head_dim, launch.programs, asked, 1)


def _folding(launch: Launch, step: Step) -> float:
    """Seconds in which the last program of a head counts itself, and reads and folds what the
    others have left.
    """
    values = launch.values
    splits = math.ceil(step.context / SPLIT.value)
    if values.get("arrivals") is None or splits == 1:
        return 0.0
    num_bytes = 4.0 * splits * values["GROUP"] * (values["HEAD_DIM"] + 2)
    return LATENCY + max(num_bytes / PROCESSOR_BYTES_PER_S, LATENCY * math.ceil(splits / UNROLLED.value))


def _norm(launch: Launch) -> Cost:
    """A program asks for all that it reads of its row, leaves and residual, before it adds."""
    values = launch.values
    residual = values["residual"]
    asked = values["SIZE"] * (4 * values["LEAVES"] + residual.element_size())
    tensors = [each for each in values.values() if isinstance(each, Tensor)]
    return Cost(_num_bytes(tensors), programs=launch.programs, asked=asked)


def _threshold(launch: Launch, step: Step) -> Cost:
    """A program a row that goes over its likeliest blocks again and again; rows that ask for
    nothing end at once, where others make them be launched.
    """
    if step.draws != "any" or launch.kernel == "keep_kernel":
        return Cost(0.0, programs=launch.programs)
    sizes: dict[str, Any] = launch.values
    chunks = math.ceil(min(KEPT_BLOCKS, sizes["BLOCKS"]) / (sizes["CHUNK"] // BLOCK.value))
    passes = 2 + 17 * chunks if launch.kernel == "top_p_kernel" else 9 + 16 * chunks
    return Cost(0.0, programs=launch.programs, passes=passes)


def _num_bytes(tensors: list[Tensor]) -> float:
    return float(sum(each.numel() * each.element_size() for each in tensors))
