"""Compiles every kernel for GPUs that are not here, as the launchers would, and prints what each
needs of one.

python -m tests.ops.kernels.compiled [80 | 89 | 90 | 100 | 120]

The launchers are called with tensors of the `meta` device; what they would launch is compiled for
the architecture and not run. So the constants and types are those in use. Needs Triton alone: its
wheel brings ptxas and cuobjdump.
"""

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from ops import kernels
from ops.interface import Adapted, AdapterPart, AttentionMetadata, Draws, Quantization, Weight
from ops.kernels.all_reduce import all_reduce
from ops.kernels.attention.paged import MOST_FOLDED
from ops.kernels.device import capability, num_processors
from ops.kernels.norm import MOST_LEAVES
from tests.ops.kernels.compiled_published import published_cases
from tests.ops.kernels.machine_code import MachineCode, machine_code

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Bytes that a program may have, by architecture: all that there are kernels for.
SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
PROCESSORS = 132  # of an H200
FLOAT8_KERNELS = {"encode_kernel"}  # for compute capability 8.9 and later
SMALL, LARGE = (
    (14, 2, 64),
    (28, 4, 128),
)  # heads, key-value heads, head size: of the models with 0.5 and 7 billion weights
WIDE_SMALL, WIDE_LARGE = (24, 1, 64), (48, 2, 128)  # the same head sizes, many queries a key head
NUM_TOKENS, NUM_SEQUENCES, MANY_SEQUENCES, NUM_SAMPLED, VOCAB = 300, 64, 1024, 64, 151936
# What most of a step's time goes to: attention, and linears that are not quantized.
MOST_OF_A_STEP = re.compile(r"(attention|folded) bf16 \d.*|\w+ bf16 (896|3584), \d+ rows?")
SHAPES = {896: {"hidden": 896, "width": 4864, "num_leaves": 2}, 3584: {"hidden": 3584, "width": 18944, "num_leaves": 4}}
PLAIN_LINEARS = frozenset(("gate_up", "linear", "qkv", "head", "tree"))
LINEARS = PLAIN_LINEARS | {"adapter"}


class Extent(IntEnum):
    """How much is compiled."""

    FEW = 0  # a sample: over all architectures, each kernel and each kind of weights
    LARGEST = 1  # enough to see each kernel at its largest
    EVERY = 2


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel, for one set of constants and types."""

    arch: int
    case: str
    kernel: str
    programs: int  # that it is launched with
    threads: int  # of a program
    registers: int
    stack: int  # bytes
    shared: int  # bytes
    products: frozenset[str]  # the instructions of the tensor cores, without their width
    is_chained: bool  # launched before the kernel before has ended
    has_wait: bool  # for that one
    code: MachineCode | None  # None: not disassembled


def compile_all(arch: int, extent: Extent) -> Iterator[Compiled]:
    """arch: one of SHARED."""
    few = extent == Extent.FEW
    for case, kernel, programs in compile_calls(arch, few_cases(arch) if few else cases(arch, extent)):
        # The disassembler takes as long as the compiler.
        yield measure(arch, case, kernel, programs, disassembles=not few or arch == 90)


def compile_calls(arch: int, calls: Iterator[str]) -> Iterator[tuple[str, Any, int]]:
    """What `calls` launches, compiled and not run: its name for it, Triton's kernel, and how many
    programs it is launched with.
    """
    capability.cache_clear()
    num_processors.cache_clear()
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: arch,  # by which Triton keeps what it has compiled
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", arch, 32),
        )
    )
    torch.cuda.get_device_capability = lambda device: divmod(arch, 10)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=PROCESSORS)
    launched: dict[Any, int] = {}
    run = jit.JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launched[run(kernel, *arguments, grid=grid, warmup=True, **options)] = math.prod(grid)

    jit.JITFunction.run = compile_only
    try:
        for case in calls:
            yield from [(case, each, programs) for each, programs in launched.items()]
            launched.clear()
    finally:
        jit.JITFunction.run = run


def few_cases(arch: int) -> Iterator[str]:
    """As `cases`, a sample."""
    if arch == 90:
        for shape in (SMALL, LARGE):
            yield from attention_cases(BF16, BF16, shape)
            yield from folded_cases(BF16, BF16, shape)
        yield from linear_cases(BF16, 1, **SHAPES[896], parts=PLAIN_LINEARS)
        yield from linear_cases(BF16, NUM_TOKENS, **SHAPES[896], parts=frozenset(("gate_up", "head", "tree")))
        yield from linear_cases(BF16, 1, **SHAPES[3584], parts=PLAIN_LINEARS)
        yield from linear_cases(BF16, NUM_TOKENS, **SHAPES[3584], parts=frozenset(("gate_up", "tree")))
        yield from quantized_cases("int4")
        yield from norm_cases(896)
        yield from sampling_cases()
    elif arch == 80:
        yield from attention_cases(BF16, BF16, LARGE)
        yield from linear_cases(BF16, NUM_TOKENS, **SHAPES[896], parts=frozenset(("adapter",)))
        yield from quantized_cases("int8")
        yield from published_cases(arch, every=False, names=("w8a8",))
        yield from experts_cases(None, (NUM_TOKENS,))
        yield from other_cases(every=False)
        yield from logprobs_cases()
    elif arch == 89:
        yield from attention_cases(BF16, FP8, LARGE)
        yield from quantized_cases("fp8")
        yield from published_cases(arch, every=False, names=("float8",))
    elif arch == 100:
        yield from attention_cases(BF16, BF16, SMALL)
        yield from published_cases(arch, every=False, names=("gptq8",))
    else:
        yield from attention_cases(BF16, BF16, LARGE)
        yield from published_cases(arch, every=False, names=("awq", "gptq4"))


def quantized_cases(quantization: Quantization) -> Iterator[str]:
    """The largest product of one row and of many."""
    for dtype, num_rows in ((BF16, 1), (BF16, NUM_TOKENS), (FP32, 1)):
        yield from linear_cases(
            dtype, num_rows, **SHAPES[896], quantization=quantization, parts=frozenset(("gate_up",))
        )


def cases(arch: int, extent: Extent) -> Iterator[str]:
    """Calls what is compiled; yields its description after each call."""
    every = extent == Extent.EVERY
    yield from attention_cases(BF16, BF16, SMALL)
    yield from attention_cases(BF16, BF16, LARGE)
    for shape in (SMALL, LARGE):
        yield from folded_cases(BF16, BF16, shape)
    yield from attention_cases(FP32, FP32, LARGE)
    yield from attention_cases(BF16, BF16, WIDE_LARGE, MANY_SEQUENCES)
    yield from attention_cases(FP32, FP32, WIDE_SMALL, MANY_SEQUENCES)
    yield from folded_cases(FP32, FP32, LARGE)
    if arch >= 89:
        yield from attention_cases(BF16, FP8, LARGE)
        yield from folded_cases(BF16, FP8, LARGE)
    yield from linear_cases(BF16, 1, **SHAPES[896])
    yield from linear_cases(BF16, NUM_TOKENS, **SHAPES[896])
    for quantization in quantizations(arch):
        for num_rows in (1, NUM_TOKENS):
            of_quantized = linear_cases(BF16, num_rows, **SHAPES[896], quantization=quantization)
            yield from of_quantized if every else islice(of_quantized, 1)
    if every:
        yield from attention_cases(FP16, FP16, SMALL)
        yield from attention_cases(FP32, FP32, SMALL)
        yield from attention_cases(BF16, BF16, WIDE_SMALL, MANY_SEQUENCES)
        yield from attention_cases(BF16, BF16, (64, 1, 128), MANY_SEQUENCES)
        for head_dim in (64, 128):
            yield from folded_cases(BF16, BF16, (2 * MOST_FOLDED, 2, head_dim))
        yield from folded_cases(FP16, FP16, SMALL)
        yield from folded_cases(FP32, FP32, SMALL)
        if arch >= 89:
            yield from attention_cases(BF16, FP8, SMALL)
            yield from folded_cases(BF16, FP8, SMALL)
            yield from attention_cases(BF16, FP8, WIDE_LARGE, MANY_SEQUENCES)
        for num_rows in (32, 64):
            yield from linear_cases(BF16, num_rows, **SHAPES[896])
        for num_rows in (16, NUM_TOKENS):
            yield from linear_cases(BF16, num_rows, **SHAPES[3584])
            for quantization in quantizations(arch):
                yield from linear_cases(BF16, num_rows, **SHAPES[3584], quantization=quantization)
        yield from linear_cases(FP32, NUM_TOKENS, **SHAPES[896])
        yield from linear_cases(FP16, NUM_TOKENS, **SHAPES[896], quantization="int4")
    yield from published_cases(arch, every=every)
    for hidden in SHAPES:
        yield from norm_cases(hidden)
    for quantization in (None, *quantizations(arch)):
        of_experts = experts_cases(quantization, (NUM_TOKENS, 16))
        yield from of_experts if every else islice(of_experts, 1)
    yield from other_cases(every=every)
    yield from sampling_cases()
    yield from logprobs_cases()


def norm_cases(hidden: int) -> Iterator[str]:
    rows, weight, update = meta(NUM_TOKENS, hidden), meta(hidden), meta(MOST_LEAVES, NUM_TOKENS, hidden, dtype=FP32)
    kernels.rms_norm(rows, weight, 1e-6)
    kernels.add_rms_norm(update, rows, weight, 1e-6)
    kernels.add(update, rows)
    yield f"norm {hidden}"


def other_cases(*, every: bool) -> Iterator[str]:
    kernels.silu_and_mul(meta(NUM_TOKENS, 2 * 4864))
    yield "silu_and_mul 4864"
    kernels.qk_norm(meta(NUM_TOKENS, 36 * 128), meta(128), meta(128), 2, 1e-6)
    yield "qk_norm 36 heads"
    kernels.add_gated(
        meta(NUM_TOKENS, 1, dtype=FP32), meta(NUM_TOKENS, 2048, dtype=FP32), meta(NUM_TOKENS, 2048, dtype=FP32)
    )
    yield "add_gated 2048"
    for ranks, is_two_shot in ((8, True), (8, False), (2, False))[: 3 if every else 1]:
        all_reduce(
            meta(NUM_TOKENS, 3584, dtype=FP32), ints(ranks, dtype=torch.int64), ints(32), ints(1),
            rank=1, capacity=1 << 21, is_two_shot=is_two_shot, looks=1,
        )  # fmt: skip
        yield f"all_reduce {ranks} ranks, {'two shots' if is_two_shot else 'one shot'}"
    cache = meta(100, 2, 16, 64)
    kernels.copy_blocks(cache, ints(30, 2))
    yield "move_blocks"
    kernels.place_tokens(ints(30), ints(30), ints(4 * 256), ints(30), ints(1600))
    yield "place_tokens"


def sampling_cases() -> Iterator[str]:
    logits, floats, rows = meta(NUM_SAMPLED, VOCAB, dtype=FP32), meta(NUM_SAMPLED, dtype=FP32), ints(NUM_SAMPLED)
    for draws in get_args(Draws):
        kernels.sample(
            logits, floats, rows, floats, floats, ints(NUM_SAMPLED, dtype=torch.int64), rows, rows, draws=draws
        )
        yield f"sample {VOCAB}, {draws}"


def logprobs_cases() -> Iterator[str]:
    logits, floats, rows = meta(NUM_SAMPLED, VOCAB, dtype=FP32), meta(NUM_SAMPLED, dtype=FP32), ints(NUM_SAMPLED)
    kernels.token_logprobs(logits, rows, 5)
    yield f"logprobs {VOCAB}"
    kernels.apply_penalties(logits, ints(9000), rows, rows, rows, floats, floats, floats)
    yield f"penalties {VOCAB}"


def attention_cases(
    dtype: torch.dtype, cache_dtype: torch.dtype, shape: tuple[int, int, int], num_sequences: int = NUM_SEQUENCES
) -> Iterator[str]:
    heads, kv_heads, head_dim = shape
    name = name_of_attention(dtype, cache_dtype, shape)
    cache = meta(1000, kv_heads, 16, head_dim, dtype=cache_dtype)
    qkv = meta(NUM_TOKENS, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    tokens = ints(NUM_TOKENS)
    query = kernels.rotary_and_cache(qkv, tokens, meta(4096, head_dim, dtype=FP32), tokens, cache, cache)
    yield f"rotary {name}"
    metadata = AttentionMetadata(
        ints(num_sequences + 1),
        ints(num_sequences),
        ints(num_sequences, 200),
        tokens,
        max_query_len=200,
        max_context_len=3200,
    )
    kernels.paged_attention(query, cache, cache, metadata, 0.1)
    yield f"attention {name}"


def folded_cases(dtype: torch.dtype, cache_dtype: torch.dtype, shape: tuple[int, int, int]) -> Iterator[str]:
    """Attention of one decoded sequence, whose splits are folded by the same kernel."""
    heads, kv_heads, head_dim = shape
    cache = meta(1000, kv_heads, 16, head_dim, dtype=cache_dtype)
    metadata = AttentionMetadata(ints(2), ints(1), ints(1, 200), ints(1), 1, 3200, arrivals=ints(1, kv_heads))
    kernels.paged_attention(meta(1, heads, head_dim, dtype=dtype), cache, cache, metadata, 0.1)
    yield f"folded {name_of_attention(dtype, cache_dtype, shape)}"


def name_of_attention(dtype: torch.dtype, cache_dtype: torch.dtype, shape: tuple[int, int, int]) -> str:
    heads, kv_heads, head_dim = shape
    of_cache = "" if cache_dtype == dtype else f", {name_of(cache_dtype)}"
    return f"{name_of(dtype)}{of_cache} {head_dim} × {heads // kv_heads}"


def quantizations(arch: int) -> tuple[Quantization, ...]:
    return kernels.QUANTIZATIONS if arch >= 89 else tuple(name for name in kernels.QUANTIZATIONS if name != "fp8")


def experts_cases(quantization: Quantization | None, numbers: tuple[int, ...]) -> Iterator[str]:
    pairs = [(meta(2 * 768, 2048), meta(2048, 768)) for _ in range(8)]
    experts = kernels.prepare_experts(pairs, 0, 4, quantization)
    for num_tokens in numbers:
        ids, weights = kernels.route(meta(num_tokens, 8, dtype=FP32), 2, True)
        kernels.experts_tree(meta(num_tokens, 2048), ids, weights, experts)
        yield f"experts 768, {num_tokens} rows{' ' + quantization if quantization else ''}"


def linear_cases(
    dtype: torch.dtype,
    num_rows: int,
    *,
    hidden: int,
    width: int,
    num_leaves: int,
    quantization: Quantization | None = None,
    parts: frozenset[str] = LINEARS,
) -> Iterator[str]:
    """parts: of LINEARS; adapters are for weights that are not quantized."""
    name = f"{name_of(dtype)} {hidden}, {num_rows} row{'s' if num_rows > 1 else ''}"
    name += f" {quantization}" if quantization else ""
    x = meta(num_rows, hidden, dtype=dtype)
    if "gate_up" in parts:
        kernels.gate_up_silu(x, kernels.prepare_gate_up(meta(2 * width, hidden, dtype=dtype), quantization))
        yield f"gate_up {name}"
    weight = kernels.prepare_linear(meta(hidden + 256, hidden, dtype=dtype), quantization)
    if "linear" in parts:
        kernels.linear(x, weight, meta(hidden + 256, dtype=dtype))
        yield f"linear {name}"
    if "qkv" in parts:
        _qkv(x, weight)
        yield f"qkv {name}"
    if "adapter" in parts and quantization is None:
        part = AdapterPart(meta(16, hidden, dtype=dtype), meta(hidden, 16, dtype=dtype), slice(0, hidden), 1.0)
        runs = torch.tensor([(0, num_rows, 0)], dtype=torch.int32)
        kernels.adapted_linear(x, weight, None, Adapted(runs, [kernels.make_adapter([part], weight)]))
        yield f"adapter {name}"
    if "head" in parts:
        kernels.linear_float32(x, kernels.prepare_embedding(meta(VOCAB, hidden, dtype=dtype), quantization))
        yield f"head {name}"
    if "tree" in parts:
        weight = kernels.prepare_tree_linear(meta(hidden, width, dtype=dtype), num_leaves, quantization)
        kernels.linear_tree(meta(num_rows, width, dtype=dtype), weight)
        yield f"tree {name}"


def _qkv(x: Tensor, weight: Weight) -> None:
    num_rows, hidden = x.shape
    head_dim = 64 if hidden == 896 else 128
    tokens, cache = ints(num_rows), meta(1000, 2, 16, head_dim, dtype=x.dtype)
    bias, angles = meta(hidden + 256, dtype=x.dtype), meta(4096, head_dim, dtype=FP32)
    kernels.linear_rotary_and_cache(x, weight, bias, tokens, angles, tokens, cache, cache)


def meta(*sizes: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def ints(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def name_of(dtype: torch.dtype) -> str:
    return {BF16: "bf16", FP16: "fp16", FP32: "fp32", FP8: "fp8"}[dtype]


def measure(arch: int, case: str, kernel: Any, programs: int, *, disassembles: bool) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = run_tool("cuobjdump", "-res-usage", file.name)
        code = machine_code(run_tool("nvdisasm", "-c", "-ndf", file.name)) if disassembles else None
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    products = re.findall(
        r"(wgmma)\.mma_async\S*?\.(m64)n\d+(k\d+\.\S+)|(mma)\.sync\.aligned\.(\w+)(\.\S+)|(tcgen05)\.mma\.\S*(kind::\w+)",
        kernel.asm["ptx"],
    )
    return Compiled(
        arch=arch,
        case=case,
        kernel=kernel.name,
        programs=programs,
        threads=32 * kernel.metadata.num_warps,
        registers=int(registers),
        stack=int(stack),
        shared=kernel.metadata.shared,
        products=frozenset(" ".join(filter(None, parts)) for parts in products),
        is_chained=kernel.metadata.launch_pdl,
        has_wait="griddepcontrol.wait" in kernel.asm["ptx"],
        code=code,
    )


def run_tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    if len(sys.argv) == 2:
        sys.exit(print_table(int(sys.argv[1])))
    statuses = [
        subprocess.run([sys.executable, "-m", "tests.ops.kernels.compiled", str(arch)]).returncode
        for arch in [int(argument) for argument in sys.argv[1:]] or SHARED
    ]
    sys.exit(max(statuses))


def print_table(arch: int) -> int:
    """1 if anything is kept outside of registers, or shared memory does not suffice."""
    print(f"sm_{arch}, Triton {triton.__version__}")
    print(
        f"{'case':<30} {'kernel':<20} {'registers':>9} {'spills':>6} {'stack':>5} {'shared':>7}  products", flush=True
    )
    bad = count = 0
    for each in compile_all(arch, Extent.EVERY):
        count += 1
        spills = each.code.spills if each.code else 0
        bad += spills + each.stack > 0 or each.shared > SHARED[arch]
        numbers = f"{each.registers:>9} {spills:>6} {each.stack:>5} {each.shared:>7}"
        print(f"{each.case:<30} {each.kernel:<20} {numbers}  {', '.join(sorted(each.products))}", flush=True)
    print(f"sm_{arch}: {count} builds, {bad} of which spill or want too much shared memory")
    return min(bad, 1)


if __name__ == "__main__":
    main()
