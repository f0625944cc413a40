"""The machine code of what most of a step's time goes to, for H100 and H200: reads of weights and
cache are wide and asynchronous, products of the widest kind, and programs fit as many as are
launched.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("triton")
from ops.kernels.attention.decode import programs_of_a_processor
from ops.kernels.matmul.linear import MOST_STAGES
from tests.ops.kernels import compiled
from tests.ops.kernels.machine_code import machine_code, resident

ARCH = 90
CHILD = "from tests.ops.kernels.test_machine_code import print_reports; print_reports()"
LOOP = """
.L_x_1:
        /*0010*/   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;
.L_x_2:
        /*0020*/   LDGSTS.E [R1], desc[UR4][R2.64] ;
        /*0030*/   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0040*/   HGMMA.64x64x16.F32.BF16 R88, gdesc[UR48], RZ, !UPT ;
        /*0050*/   @!P1 BRA `(.L_x_2) ;
        /*0060*/   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/   @!P1 BRA `(.L_x_1) ;
"""


def test_what_is_read_of_machine_code() -> None:
    code = machine_code(LOOP)
    assert code.asynchronous == {128: 1, 32: 1}
    assert code.products == {"HGMMA.64x64x16.F32.BF16"}
    assert code.barriers == 1, "of the inner loop"


def test_a_kernel_that_waits_does_nothing_before() -> None:
    wait = "/*0010*/ ACQBULK ;\n"
    act, end, branch = "/*0020*/ LDG.E R0, desc[UR8][R2.64] ;\n", "/*0020*/ @!P0 EXIT ;\n", "/*0020*/ BRA `(.L_x_2) ;\n"
    constants, fetch = "/*0000*/ LDC R1, c[0x0][0x28] ;\n", "/*0000*/ CCTL.E.PF2 [R6] ;\n"
    assert machine_code(constants + fetch + wait + act + end).waits
    assert not any(machine_code(before + wait + act).waits for before in (act, end, branch))
    assert not machine_code(act + end).waits


RESERVING = """
        /*0040*/                   BRA.U UP0, `(.L_x_0) ;
        /*0090*/                   LDS.U8 R0, [UR4] ;
        /*00d0*/               @P0 BRA `(.L_x_1) ;
.L_x_4:
        /*0140*/                   UTCATOMSWS.FIND_AND_SET.ALIGN UP0, UR5, UR5 ;
        /*0220*/              @!P0 BRA `(.L_x_4) ;
        /*02a0*/                   ATOMS.OR RZ, [UR5], R2 ;
.L_x_1:
        /*0300*/                   CALL.REL.NOINC `($__internal_1_$__cuda_sm10x_tcgen05_guardrail_trap_phase_invalid) ;
.L_x_0:
        /*0330*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0420*/                   ACQBULK ;
        /*0480*/                   LDG.E R0, desc[UR8][R2.64] ;
.L_x_5:
        /*0490*/                   EXIT ;
"""


def test_a_kernel_may_reserve_tensor_memory_before_it_waits() -> None:
    assert machine_code(RESERVING).waits
    for what, instead in (
        ("BRA `(.L_x_1)", "BRA `(.L_x_5)"),  # past the wait
        ("LDS.U8", "LDG.E"),
        ("$__internal_1_$__cuda_sm10x_tcgen05_guardrail_trap_phase_invalid", "other"),
        ("ACQBULK", "NOP"),
    ):
        assert not machine_code(RESERVING.replace(what, instead)).waits, what


def test_how_many_programs_a_processor_runs() -> None:
    assert resident(90, registers=136, threads=128, shared=41 << 10) == 3
    assert resident(90, registers=128, threads=128, shared=41 << 10) == 4
    assert resident(90, registers=40, threads=128, shared=98 << 10) == 2
    assert resident(120, registers=32, threads=128, shared=0) == 12


def calls() -> Iterator[str]:
    bf16 = compiled.BF16
    return chain(
        compiled.attention_cases(bf16, bf16, compiled.SMALL),
        compiled.attention_cases(bf16, bf16, compiled.LARGE),
        compiled.folded_cases(bf16, bf16, compiled.SMALL),
        compiled.folded_cases(bf16, bf16, compiled.LARGE),
        compiled.linear_cases(bf16, 1, hidden=896, width=4864, num_leaves=2),
        compiled.linear_cases(bf16, compiled.NUM_TOKENS, hidden=896, width=4864, num_leaves=2),
    )


def print_reports() -> None:
    for case, kernel, programs in compiled.compile_calls(ARCH, calls()):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            code = machine_code(compiled.run_tool("nvdisasm", "-c", file.name))
        measured = compiled.measure(case, kernel)
        report = {
            "case": case,
            "kernel": kernel.name,
            "asynchronous": list(code.asynchronous.items()),
            "products": sorted(code.products),
            "barriers": code.barriers,
            "stages": kernel.metadata.shared // (80 * 64 * 2) if kernel.name == "linear_kernel" else 0,
            "programs": programs,
            "local": measured.spills + measured.stack,
            "resident": resident(
                ARCH, registers=measured.registers, threads=32 * kernel.metadata.num_warps, shared=measured.shared
            ),
        }
        print(json.dumps(report))


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    """Of a process that does not interpret; what others have compiled is found in the cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    return [json.loads(line) for line in child.stdout.splitlines()]


def of(reports: list[dict[str, Any]], kernel: str, *cases: str) -> list[dict[str, Any]]:
    """Cases begin with one of those."""
    found = [each for each in reports if each["kernel"] == kernel and each["case"].startswith(cases or ("",))]
    assert found, kernel
    return found


def test_nothing_is_kept_in_memory(reports: list[dict[str, Any]]) -> None:
    assert [each for each in reports if each["local"]] == []


def test_weights_are_read_ahead_by_128_bits(reports: list[dict[str, Any]]) -> None:
    for each in of(reports, "linear_kernel") + of(reports, "qkv_kernel"):
        assert [bits for bits, _ in each["asynchronous"]] == [128], each
        assert each["barriers"] <= 2, each


def test_the_cache_is_read_ahead_by_128_bits(reports: list[dict[str, Any]]) -> None:
    """Beside it only the numbers of blocks, of 32."""
    for each in of(reports, "decode_kernel") + of(reports, "prefill_kernel"):
        assert {bits for bits, _ in each["asynchronous"]} == {32, 128}, each
        assert 0 < each["barriers"] <= 3, each


def test_products_are_of_the_widest_shape(reports: list[dict[str, Any]]) -> None:
    for each in of(reports, "linear_kernel", "gate_up", "linear", "head", "tree"):
        width = 128 if f"{compiled.NUM_TOKENS} rows" in each["case"] else 16
        assert each["products"] == [f"HGMMA.64x{width}x16.F32.BF16"], each
    (qkv,) = of(reports, "qkv_kernel")
    assert qkv["products"] == ["HGMMA.64x16x16.F32.BF16"], "as of linear_kernel"
    for head_dim in (64, 128):
        for kernel in ("decode_kernel", "prefill_kernel"):
            (each,) = of(reports, kernel, f"attention bf16 {head_dim} ")
            assert set(each["products"]) == {"HGMMA.64x64x16.F32.BF16", f"HGMMA.64x{head_dim}x16.F32.BF16"}


def test_as_many_programs_fit_as_are_launched(reports: list[dict[str, Any]]) -> None:
    for head_dim in (64, 128):
        (each,) = of(reports, "decode_kernel", f"attention bf16 {head_dim} ")
        assert each["resident"] >= programs_of_a_processor(head_dim), each
    for each in of(reports, "decode_kernel"):
        assert each["resident"] >= -(-each["programs"] // compiled.PROCESSORS), each
    for each in of(reports, "linear_kernel"):
        assert each["resident"] >= min(2, -(-each["programs"] // compiled.PROCESSORS)), each


def test_programs_that_have_a_processor_each_read_further_ahead(reports: list[dict[str, Any]]) -> None:
    """A program of few rows asks for a tile in each stage; of 896 inputs there are 14 tiles."""
    (few,) = of(reports, "linear_kernel", "linear bf16 896, 1 row")
    (many,) = of(reports, "linear_kernel", "head bf16 896, 1 row")
    assert few["programs"] <= compiled.PROCESSORS / 2 < compiled.PROCESSORS < many["programs"]
    assert few["stages"] == MOST_STAGES > many["stages"]
