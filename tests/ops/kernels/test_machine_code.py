"""What is read of machine code."""

from tests.ops.kernels.machine_code import machine_code, resident

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
    assert (code.asynchronous, code.boxes) == ({128: 1, 32: 1}, 0)
    assert machine_code("/*0010*/ UTMALDG.2D [UR16], [UR4] ;").boxes == 1
    assert code.products == {"HGMMA.64x64x16.F32.BF16"}
    assert code.barriers == 1, "of the inner loop"
    assert (code.spills, machine_code("/*0010*/ STL [R1], R88 ;").spills) == (0, 1)


def test_a_kernel_that_waits_does_nothing_before() -> None:
    wait = "/*0010*/ ACQBULK ;\n"
    act, end, branch = "/*0020*/ LDG.E R0, desc[UR8][R2.64] ;\n", "/*0020*/ @!P0 EXIT ;\n", "/*0020*/ BRA `(.L_x_2) ;\n"
    constants, fetch = "/*0000*/ LDC R1, c[0x0][0x28] ;\n", "/*0000*/ CCTL.E.PF2 [R6] ;\n"
    assert machine_code(constants + fetch + wait + act + end).waits
    assert not any(machine_code(before + wait + act).waits for before in (act, end, branch))
    assert not machine_code(act + end).waits
    written = "/*0020*/ STG.E desc[UR8][R2.64], R0 ;\n"
    assert machine_code(act + wait + written).waits_to_write
    assert not any(machine_code(before + wait + act).waits_to_write for before in (written, end, branch))


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
