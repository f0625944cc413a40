"""A tape computes what was noted down, from what lies there when it is replayed, and fails as that
would.
"""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from ops import cpu
from ops.cpu import tape
from ops.cpu.tape import Tapes
from ops.interface import AttentionMetadata
from parallel.errors import GroupError
from parallel.groups.group import Group
from tests.engine.worker.tiny import Shape, decode_carrying, execute_on, generate, make_runner
from tests.parallel.ranks import CPU, run_ranks

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))
PROMPTS = [[5, 9, 200, 31, 7], list(range(40, 61)), [3, 3, 3]]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_replay_reads_anew_and_nothing_is_computed_before_it() -> None:
    x, residual, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    packed = cpu.prepare_tree_linear(torch.randn(40, 40), 4)

    def compute() -> torch.Tensor:
        return cpu.add_rms_norm(cpu.linear_tree(x[:2], packed).view(2, 40), residual[:2], weight, 1e-6)

    before = residual.clone()
    replay = Tapes().capture(compute)
    assert torch.equal(residual, before)
    for _ in range(3):
        x.normal_()
        residual.copy_(before)
        expected, added = compute().clone(), residual.clone()
        residual.copy_(before)
        got = replay()
        assert torch.equal(got, expected)
        assert torch.equal(residual, added)
        assert replay() is got


def test_tapes_share_memory_and_nothing_else() -> None:
    """A tensor's memory is another's later, on the same tape and on others; what a tape returns is
    no later one's.
    """
    x, weight = torch.randn(20, 304), torch.randn(304)
    gate_up, down = cpu.prepare_gate_up(torch.randn(2 * 640, 304)), cpu.prepare_tree_linear(torch.randn(304, 640), 8)

    def compute(rows: int, layers: int = 6) -> torch.Tensor:
        residual = x[:rows]
        for _ in range(layers):
            residual = cpu.rms_norm(cpu.linear_tree(cpu.gate_up_silu(residual, gate_up), down), weight, 1e-6)
        return residual

    tapes = Tapes()
    replays = [tapes.capture(partial(compute, rows)) for rows in (20, 3, 17)]
    free = tapes._memory.num_free_bytes
    assert free <= 2 * 20 * (640 + 2 * 304) * 4  # of one layer at a time, rounded up
    replays.append(tapes.capture(partial(compute, 20, layers=12)))
    assert tapes._memory.num_free_bytes == free
    outputs = [replay() for replay in replays[:3]]
    for output, rows in zip(outputs, (20, 3, 17), strict=True):
        assert torch.equal(output, compute(rows))


@pytest.mark.parametrize("rows", [1, 8, 20])
def test_threads_that_share_cores_change_nothing(rows: int) -> None:
    """They lose their cores while they compute, and others take their work over."""
    before, norm, threads = torch.randn(rows, 304).bfloat16(), torch.randn(304).bfloat16(), torch.get_num_threads()
    residual = before.clone()
    gate_up = cpu.prepare_gate_up(torch.randn(2 * 640, 304).bfloat16() / 16)
    down = cpu.prepare_tree_linear(torch.randn(304, 640).bfloat16() / 16, 8)

    def compute() -> torch.Tensor:
        x = cpu.rms_norm(residual, norm, 1e-6)
        for _ in range(10):
            x = cpu.add_rms_norm(cpu.linear_tree(cpu.gate_up_silu(x, gate_up), down), residual, norm, 1e-6)
        return x

    expected = compute()
    torch.set_num_threads(2 * len(os.sched_getaffinity(0)) + 1)
    try:
        replay = Tapes().capture(compute)
        for _ in range(20):
            residual.copy_(before)
            assert torch.equal(replay(), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_capture_does_not_import_torchs_compiler() -> None:
    """Which takes seconds, while the first answer waits."""
    program = (
        "import sys, torch; from ops import cpu; from ops.cpu.tape import Tapes\n"
        "x, weight = torch.randn(3, 40), torch.randn(40)\n"
        "Tapes().capture(lambda: cpu.rms_norm(x, weight, 1e-6))()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "shape",
    [
        Shape(32, torch.float32, torch.float32),
        Shape(64, torch.bfloat16, torch.bfloat16, num_experts=4),
        Shape(32, torch.bfloat16, torch.bfloat16, quantization="int8"),
        Shape(32, torch.bfloat16, torch.bfloat16, num_experts=4, quantization="int4"),
    ],
    ids=["float32", "experts", "int8", "int4 experts"],
)
def test_every_kind_of_layer_has_the_bits_it_has_without_tapes(shape: Shape, caplog: pytest.LogCaptureFixture) -> None:
    expected = generate(execute_on(make_runner(cpu, CPU, shape)), PROMPTS, 8)
    runner = make_runner(cpu, CPU, shape)
    runner.use_tapes(Tapes().capture, max_model_len=96)
    assert generate(execute_on(runner), PROMPTS, 8) == expected
    assert decode_carrying(runner, PROMPTS, 8) == expected
    assert runner._layers.graphs is not None
    assert runner._layers.graphs.num_captured == 1
    assert not caplog.records


def test_ranks_add_what_their_tapes_compute() -> None:
    shape = Shape(32, torch.bfloat16, torch.bfloat16, num_experts=4)
    steps = []
    alone = execute_on(make_runner(cpu, CPU, shape))

    def execute(request: ExecuteModelRequest) -> SamplerOutput | None:
        steps.append((request, alone(request)))
        return steps[-1][1]

    generate(execute, PROMPTS, 8)

    def on_tapes(tp: Group, _: Group) -> list[SamplerOutput | None]:
        runner = make_runner(cpu, CPU, shape, tp=tp)
        runner.use_tapes(Tapes().capture, max_model_len=96)
        outputs = [execute_on(runner)(request) for request, _ in steps]
        assert runner._layers.graphs is not None
        assert runner._layers.graphs.num_captured == 1
        return outputs

    first, second = run_ranks(2, on_tapes)
    assert second == [None] * len(steps)
    for got, (_, expected) in zip(first, steps, strict=True):
        assert got is not None
        assert expected is not None
        assert got.token_ids.tobytes() == expected.token_ids.tobytes()
        assert got.logprobs.tobytes() == expected.logprobs.tobytes()


def test_what_torch_computes_is_not_on_a_tape() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(tape.NotOnTape, match="torch computes aten::mul"):
        Tapes().capture(lambda: cpu.silu_and_mul(x * 2))
    with pytest.raises(tape.NotOnTape, match="torch computes aten::zero_"):
        Tapes().capture(lambda: cpu.silu_and_mul(x.zero_()))
    assert x.any(), "which has not happened"
    with pytest.raises(tape.NotOnTape, match="torch computes aten::lift_fresh"):
        Tapes().capture(lambda: cpu.silu_and_mul(torch.tensor([[1.0, 2.0]])))
    with pytest.raises(tape.NotOnTape, match="torch computes aten::contiguous"):
        Tapes().capture(lambda: cpu.silu_and_mul(x.view(4, 4).t().contiguous()))
    odd = cpu.prepare_linear(torch.randn(3, 5).bfloat16())  # whose inputs are padded
    with pytest.raises(tape.NotOnTape, match="torch computes aten::pad"):
        Tapes().capture(lambda: cpu.linear(torch.empty(2, 5, dtype=torch.bfloat16), odd, None))
    assert cpu.silu_and_mul(x).shape == (2, 4), "and afterwards kernels compute as before"


def test_no_other_kernel_is_on_a_tape() -> None:
    ids, table = ints(1, 2), cpu.prepare_embedding(torch.randn(4, 8))
    with pytest.raises(tape.NotOnTape, match="squadron_unpack_rows cannot be on a tape"):
        Tapes().capture(lambda: cpu.embedding(ids, table))


def test_messages_are_not_on_a_tape_and_are_not_sent() -> None:
    def send(group: Group, _: Group) -> None:
        x = torch.ones(3)
        if group.rank == 0:
            with pytest.raises(tape.NotOnTape, match="squadron_shm_send cannot be on a tape"):
                Tapes().capture(lambda: (group.send(x, 1), x)[1])
            group.send(2 * x, 1)
        else:
            assert group.recv((3,), torch.float32, 0).tolist() == [2.0] * 3

    run_ranks(2, send)


def test_a_replay_fails_as_the_calls_would_and_makes_none_after_that() -> None:
    key_cache, value_cache = torch.zeros(4, 1, 16, 32), torch.zeros(4, 1, 16, 32)
    qkv, cos_sin, residual = torch.randn(1, 3 * 32), torch.randn(64, 32), torch.zeros(1, 32)
    positions, slots, contexts, tables = ints(0), ints(16), ints(1), ints(1)[None]
    metadata = AttentionMetadata(ints(0, 1), contexts, tables, slots, max_query_len=1, max_context_len=16)

    def compute() -> torch.Tensor:
        query = cpu.rotary_and_cache(qkv, positions, cos_sin, slots, key_cache, value_cache)
        attended = cpu.paged_attention(query, key_cache, value_cache, metadata, 1.0)
        cpu.add(attended.view(1, 32), residual)
        return residual

    replay = Tapes().capture(compute)
    first = replay().clone()
    assert first.abs().sum() > 0
    slots[0] = 64
    with pytest.raises(ValueError, match=r"row 0: position 0 of 64, slot 64 of 64"):
        replay()
    slots[0], tables[0, 0] = 16, 9
    with pytest.raises(ValueError, match="sequence 0 of the metadata"):
        replay()
    assert torch.equal(residual, first), "what comes after it was not done"
    tables[0, 0] = 1
    assert torch.equal(replay(), 2 * first)


def test_a_replay_that_waits_for_a_rank_is_got_out() -> None:
    def wait(group: Group, _: Group) -> str:
        x = torch.full((4,), 1.0 + group.rank)
        replay = Tapes().capture(lambda: group.all_reduce(x))
        sums = replay().clone()
        assert sums.tolist() == [3.0] * 4
        if group.rank == 1:
            group.abort()
            return "aborted"
        with pytest.raises(GroupError, match="rank 0 of 2: the group was aborted"):
            replay()
        return "told"

    assert run_ranks(2, wait) == ["told", "aborted"]
