"""Every kernel, compiled for the GPUs that it is for: nothing is kept outside of registers, and
shared memory suffices.

And the machine code of what most of a step's time goes to, for H100 and H200, of models of half a
billion and seven billion weights: reads of weights and cache are wide and asynchronous, products of
the widest kind, and programs fit as many as are launched.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
import ops.kernels
from tests.ops.kernels import compiled_published
from tests.ops.kernels.compiled import (
    FLOAT8_KERNELS,
    MOST_OF_A_STEP,
    NUM_TOKENS,
    PROCESSORS,
    SHARED,
    Compiled,
    Extent,
    compile_all,
)
from tests.ops.kernels.machine_code import MachineCode, resident

SOURCES = Path(ops.kernels.__file__).parent.rglob("*.py")
KERNELS = {name for source in SOURCES for name in re.findall(r"^def (\w+_kernel)\(", source.read_text(), re.MULTILINE)}
KINDS = ("int8", "int4", "fp8", *(name for name, *_ in compiled_published.KINDS))  # how a linear is quantized
CHAIN = {  # of a decode step and its sampling, on Hopper and later
    "linear_kernel",
    "qkv_kernel",
    "add_leaves_kernel",
    "norm_kernel",
    "qk_norm_kernel",
    "add_kernel",
    "rotary_kernel",
    "decode_kernel",
    "hopper_decode_kernel",
    "fold_kernel",
    "largest_kernel",
    "top_k_kernel",
    "mass_kernel",
    "top_p_kernel",
    "keep_kernel",
    "draw_kernel",
    "likeliest_kernel",
}
LINEARS = ("linear_kernel", "qkv_kernel")
HOPPER_DECODE = "hopper_decode_kernel"
ARCH = 90  # whose machine code is looked at
CHILD = "import sys; from tests.ops.kernels.test_compiled import send_compiled; send_compiled(*map(int, sys.argv[1:]))"


def send_compiled(extent: int, *architectures: int) -> None:
    compiled = [each for arch in architectures for each in compile_all(arch, Extent(extent))]
    sys.stdout.buffer.write(pickle.dumps(compiled))


def compiled_for(extent: Extent, *architectures: int) -> list[Compiled]:
    """By a process of its own: interpreted or not is settled when kernels are imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_DISABLE_LINE_INFO": "1"}  # the same code, in two thirds of the time
    command = [sys.executable, "-c", CHILD, str(int(extent)), *map(str, architectures)]
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    compiled: list[Compiled] = pickle.loads(child.stdout)
    return compiled


def kind_of(case: str) -> str:
    """How the weights of a linear are quantized."""
    return next((kind for kind in KINDS if case.endswith(kind)), "")


def check(arch: int, compiled: list[Compiled]) -> None:
    """Nothing spills, and each row meets the same instruction."""
    for each in compiled:
        # One that began and did not wait, or ended before, would let the next one read too early.
        is_chained = arch >= 90 and each.kernel in CHAIN
        assert each.is_chained == each.has_wait == is_chained, each
        if each.code is not None:  # a norm reads its weight first, which no kernel writes
            waits = each.code.waits_to_write if each.kernel == "norm_kernel" else each.code.waits
            assert (waits, each.code.spills) == (is_chained, 0), each
        assert each.stack == 0, each
        assert each.shared <= SHARED[arch], each
    # A row's bits can be the same alone and among thousands only if both meet one kind of
    # instruction.
    for kind in ("", *KINDS):
        linears = [each for each in compiled if each.kernel in LINEARS and kind_of(each.case) == kind]
        linears = [each for each in linears if "fp32" not in each.case]  # which tensor cores do not multiply
        assert len({each.products for each in linears}) <= 1, (arch, kind)
    for case in {each.case for each in compiled if each.case.startswith("attention")}:
        steps = {each.kernel: each.products for each in compiled if each.case == case}
        assert bool(steps["prefill_kernel"]) == ("fp32" not in case), case  # which tensor cores do not multiply
        if HOPPER_DECODE in steps:  # Hopper's narrow products have the bits of its wide ones: seen on a device
            assert {name.split()[1] for name in steps[HOPPER_DECODE]} == {"m16n8k16"}, case
        else:
            assert steps["decode_kernel"] == steps["prefill_kernel"]
    products = {each.case: each.products for each in compiled if each.kernel in ("decode_kernel", "prefill_kernel")}
    for case in [case for case in products if case.startswith("folded ")]:
        assert products[case] == products[case.replace("folded", "attention")], case


def kinds_of(compiled: list[Compiled]) -> set[str]:
    """Those of which products of one row and of many are there."""
    numbers: dict[str, set[bool]] = {}
    for each in compiled:
        if each.kernel in LINEARS:
            numbers.setdefault(kind_of(each.case), set()).add(f"{NUM_TOKENS} rows" in each.case)
    return {kind for kind, rows in numbers.items() if rows == {False, True}}


@pytest.mark.long
@pytest.mark.parametrize("arch", [80, ARCH])
def test_nothing_spills_and_each_row_meets_the_same_instruction_where_kernels_are_largest(arch: int) -> None:
    compiled = compiled_for(Extent.LARGEST, arch)
    assert all(each.code for each in compiled)
    assert {each.kernel for each in compiled} == (
        KERNELS if arch == ARCH else KERNELS - FLOAT8_KERNELS - {HOPPER_DECODE}
    )
    assert kinds_of(compiled) == {"", *KINDS} - ({"fp8", "float8"} if arch < 89 else set())
    check(arch, compiled)


@pytest.mark.long
@pytest.mark.parametrize("arch", [100, 120])
def test_chained_kernels_wait_on_later_gpus(arch: int) -> None:
    """Where a program reserves tensor memory first."""
    for each in compiled_for(Extent.LARGEST, arch):
        assert each.code is not None
        assert each.is_chained == each.code.waits == (each.kernel in CHAIN), each


@pytest.fixture(scope="module")
def sample() -> list[Compiled]:
    return compiled_for(Extent.FEW, *SHARED)


@pytest.fixture(scope="module")
def compiled(sample: list[Compiled]) -> list[Compiled]:
    return [each for each in sample if each.arch == ARCH]


def test_nothing_spills_and_each_row_meets_the_same_instruction(sample: list[Compiled]) -> None:
    """On some architecture each kernel, and each kind of weights; all on all is a command's."""
    of_arch = {arch: [each for each in sample if each.arch == arch] for arch in SHARED}
    assert {each.kernel for each in sample} == KERNELS
    assert set.union(*map(kinds_of, of_arch.values())) == {"", *KINDS}
    for arch, compiled in of_arch.items():
        check(arch, compiled)


def of(compiled: list[Compiled], kernel: str, *cases: str) -> list[tuple[Compiled, MachineCode]]:
    """Of what most of a step's time goes to; cases begin with one of those."""
    named = [each for each in compiled if each.kernel == kernel and MOST_OF_A_STEP.fullmatch(each.case)]
    found = [(each, each.code) for each in named if each.code and each.case.startswith(cases or ("",))]
    assert found, kernel
    return found


def resident_of(each: Compiled) -> int:
    return resident(ARCH, registers=each.registers, threads=each.threads, shared=each.shared)


def test_weights_are_read_ahead_by_tiles_or_by_128_bits(compiled: list[Compiled]) -> None:
    for each, code in of(compiled, "linear_kernel"):
        assert code.boxes and not code.asynchronous, each
        assert code.barriers <= 4, each
    for each, code in of(compiled, "qkv_kernel"):
        assert list(code.asynchronous) == [128], each
        assert code.barriers <= 2, each


def test_the_cache_is_read_ahead_by_128_bits(compiled: list[Compiled]) -> None:
    """Beside it only the numbers of blocks, of 32."""
    for each, code in of(compiled, "decode_kernel") + of(compiled, "prefill_kernel"):
        assert set(code.asynchronous) == {32, 128}, each
        assert 0 < code.barriers <= 3, each
    for each, code in of(compiled, HOPPER_DECODE):
        assert list(code.asynchronous) == [128], each


def test_products_are_of_the_widest_shape(compiled: list[Compiled]) -> None:
    for each, code in of(compiled, "linear_kernel", "gate_up", "linear", "head", "tree"):
        widths = (64, 128, 256) if f"{NUM_TOKENS} rows" in each.case else (16,)
        assert code.products in [{f"HGMMA.64x{width}x16.F32.BF16"} for width in widths], each
    for each, code in of(compiled, "qkv_kernel"):
        assert code.products == {"HGMMA.64x16x16.F32.BF16"}, each  # as of linear_kernel
    for head_dim in (64, 128):
        for kernel, case in (("decode_kernel", "folded"), ("prefill_kernel", "attention")):
            ((_, code),) = of(compiled, kernel, f"{case} bf16 {head_dim} ")
            assert code.products == {"HGMMA.64x64x16.F32.BF16", f"HGMMA.64x{head_dim}x16.F32.BF16"}


def test_as_many_programs_fit_as_are_launched(compiled: list[Compiled]) -> None:
    for each, _ in of(compiled, "decode_kernel") + of(compiled, HOPPER_DECODE):
        assert resident_of(each) >= -(-each.programs // PROCESSORS), each
    for each, _ in of(compiled, "linear_kernel"):
        most = 2 if each.threads == 128 else 1  # two groups of warps take all registers
        assert resident_of(each) >= min(most, -(-each.programs // PROCESSORS)), each


def test_programs_that_have_a_processor_each_read_further_ahead(compiled: list[Compiled]) -> None:
    """A program of few rows asks for a tile in each stage."""
    ((few, _),) = of(compiled, "linear_kernel", "linear bf16 896, 1 row")
    ((many, _),) = of(compiled, "linear_kernel", "head bf16 896, 1 row")
    assert few.programs <= PROCESSORS < many.programs
    assert few.shared > 1.9 * many.shared
