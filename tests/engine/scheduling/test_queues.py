"""A lane is where its status says, with the blocks that belong there."""

from engine.request import Adapter, Arrival, Request
from engine.sampling_params import SamplingParams
from engine.scheduling.sequence import Status
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, check_engine, make_engine


def test_blocks_go_with_the_queue() -> None:
    engine = make_engine(Knobs(num_blocks=40, num_cpu_blocks=40))
    add_request(engine, "r", [1] * 40, SamplingParams())
    queues = engine.scheduler.queues
    (lane,) = queues.waiting
    (seq,) = lane.seqs

    def place() -> tuple[list[str], int, int]:
        check_engine(engine)
        named = {"waiting": queues.waiting, "running": queues.running, "swapped": queues.swapped}
        found = [name for name, queue in named.items() if lane in queue]
        return found, len(seq.block_table), len(seq.host_block_table)

    assert place() == (["waiting"], 0, 0)
    engine.scheduler.schedule()
    assert place() == (["running"], 3, 0) and lane.status is Status.RUNNING
    queues.swap_out(lane)
    assert place() == (["swapped"], 0, 3) and lane.status is Status.SWAPPED
    queues.swap_in(lane)
    queues.blocks.take_moves()
    assert place() == (["running"], 3, 0)
    queues.requeue(lane)
    assert place() == (["waiting"], 0, 0)
    assert seq.num_computed_tokens == 0
    queues.finish(lane)
    assert place() == ([], 0, 0) and lane.status is Status.FINISHED


def test_choices_wait_aside_until_the_prompt_is_computed() -> None:
    engine = make_engine(Knobs(overrides={"max_num_batched_tokens": 32}))
    add_request(engine, "r", [1] * 40, SamplingParams(n=2))
    queues = engine.scheduler.queues
    first, second = queues.waiting
    engine.scheduler.schedule()
    assert (first.status, second.status) == (Status.RUNNING, Status.ASIDE)
    assert queues.running == [first] and len(queues.waiting) == 0 and first.group.aside == [second]
    engine.scheduler.schedule()
    assert queues.running == [first, second] and first.group.aside == []


def test_whoever_is_set_aside_may_leave() -> None:
    engine = make_engine(Knobs(overrides={"max_num_batched_tokens": 32}))
    add_request(engine, "r", [1] * 40, SamplingParams(n=3))
    engine.scheduler.schedule()
    engine.abort_request("r")
    check_engine(engine)
    assert engine.stats().num_requests_waiting == engine.stats().num_requests_running == 0


def test_adapters_are_known_by_where_their_lanes_are() -> None:
    engine = make_engine(Knobs(num_blocks=40, num_cpu_blocks=40, overrides={"enable_lora": True}))
    queues = engine.scheduler.queues
    for number, name in enumerate("aab"):
        group = engine.admission.make_group(
            Arrival(Request(str(number), [1] * 20, SamplingParams(), adapter=Adapter(name, "", 2 * name, 8)), [1] * 20)
        )
        engine.scheduler.add(group)
    first, second, third = queues.waiting

    def names() -> tuple[dict[str, int], dict[str, int]]:
        return dict(queues.running_adapters), dict(queues.waiting.adapters)

    assert names() == ({}, {"a": 2, "b": 1})
    for lane in (first, third):
        queues.run(lane)
    assert names() == ({"a": 1, "b": 1}, {"a": 1})
    queues.set_aside(second)
    queues.requeue(third)
    assert names() == ({"a": 1}, {"b": 1})
    for lane in (first, second, third):
        queues.finish(lane)
    assert names() == ({}, {})
