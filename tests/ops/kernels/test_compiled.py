"""Every kernel, compiled for the GPUs that it is for: nothing is kept outside of registers, and
shared memory suffices.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("triton")
import ops.kernels
from tests.ops.kernels import compiled_published
from tests.ops.kernels.compiled import FLOAT8_KERNELS, MAX_SHARED, Compiled, compile_all

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
CHILD = "import sys; from tests.ops.kernels.test_compiled import print_compiled; print_compiled(int(sys.argv[1]))"


def print_compiled(arch: int) -> None:
    for each in compile_all(arch, every=False):
        print(json.dumps(asdict(each) | {"products": sorted(each.products)}))


def compiled_for(arch: int) -> list[Compiled]:
    """By a process of its own: interpreted or not is settled when kernels are imported, and one
    architecture a process.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CHILD, str(arch)]
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    return [Compiled(**line | {"products": frozenset(line["products"])}) for line in lines]


def kind_of(case: str) -> str:
    """How the weights of a linear are quantized."""
    return next((kind for kind in KINDS if case.endswith(kind)), "")


@pytest.mark.parametrize("arch", [pytest.param(80, marks=pytest.mark.long), 90])
def test_nothing_spills_and_each_row_meets_the_same_instruction(arch: int) -> None:
    compiled = compiled_for(arch)
    assert {each.kernel for each in compiled} == (KERNELS if arch >= 89 else KERNELS - FLOAT8_KERNELS)
    for each in compiled:
        # One that began and did not wait, or ended before, would let the next one read too early.
        assert each.is_chained == each.waits == (arch >= 90 and each.kernel in CHAIN), each
        assert (each.spills, each.stack) == (0, 0), each
        assert each.shared <= MAX_SHARED[arch], each
    # A row's bits can be the same alone and among thousands only if both meet one kind of
    # instruction.
    for kind in ("", *KINDS):
        linears = [each for each in compiled if each.kernel in LINEARS and kind_of(each.case) == kind]
        assert len({each.products for each in linears}) == (0 if kind in ("fp8", "float8") and arch < 89 else 1), kind
    for case in {each.case for each in compiled if each.case.startswith("attention")}:
        steps = {each.kernel: each.products for each in compiled if each.case == case}
        assert steps["decode_kernel"] == steps["prefill_kernel"]
        assert bool(steps["decode_kernel"]) == ("fp32" not in case), case  # which tensor cores do not multiply
    products = {each.case: each.products for each in compiled if each.kernel == "decode_kernel"}
    folded = [case for case in products if case.startswith("folded ")]
    assert folded
    for case in folded:
        assert products[case] == products[case.replace("folded", "attention")], case


@pytest.mark.long
@pytest.mark.parametrize("arch", [100, 120])
def test_chained_kernels_wait_on_later_gpus(arch: int) -> None:
    """Where a program reserves tensor memory first."""
    for each in compiled_for(arch):
        assert each.is_chained == each.waits == (each.kernel in CHAIN), each
