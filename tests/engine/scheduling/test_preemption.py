"""Who gives up blocks when there are too few, and how."""

import random

import pytest

from engine.sampling_params import SamplingParams
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.preemption import PreemptionCosts
from engine.scheduling.sequence import Status
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, essence, make_engine, random_requests, run


@pytest.mark.parametrize("swap_seconds", [0.0, float("inf")])
def test_a_quarter_of_the_cache_loses_nothing(swap_seconds):
    rng = random.Random(7)
    requests = [r for r in random_requests(rng, 60) if r.params.num_samples == 1]
    demand = sum(-(-(len(r.prompt) + r.params.max_tokens) // 16) for r in requests)
    plenty = run(make_engine(Knobs(num_blocks=demand + 1)), requests)
    engine = make_engine(Knobs(num_blocks=demand // 4 + 1, num_cpu_blocks=demand, swap_seconds_per_block=swap_seconds))
    scarce = run(engine, requests, rng=None)
    assert {key: essence(answer) for key, answer in scarce.items()} == {
        key: essence(answer) for key, answer in plenty.items()
    }
    stats = engine.stats()
    assert (stats.num_preemptions_swap if swap_seconds == 0 else stats.num_preemptions_recompute) > 0
    assert (stats.num_wasted_tokens > 0) == (swap_seconds > 0)


def test_waiting_after_a_preemption_is_not_called_decoding():
    engine = make_engine(Knobs(num_blocks=12, depth=2, runs_ahead=True, swap_seconds_per_block=float("inf")))
    for number in range(4):
        add_request(engine, f"r{number}", [number + 1] * 30, SamplingParams(max_tokens=60, ignore_eos=True))
    waited = []
    while engine.has_unfinished_requests():
        engine.step()
        waited += [
            lane.group.metrics.phase for lane in engine.scheduler.queues.waiting if lane.group.metrics.num_preemptions
        ]
    assert waited and set(waited) == {"preemption"}


@pytest.mark.parametrize(
    ("swap_seconds", "victim", "status"), [(float("inf"), "short", Status.WAITING), (0.0, "long", Status.SWAPPED)]
)
def test_the_cheapest_to_bring_back_goes(swap_seconds, victim, status):
    """What costs least to compute again, or, where all swaps cost the same, who came first."""
    engine = make_engine(Knobs(num_blocks=8, num_cpu_blocks=8, swap_seconds_per_block=swap_seconds))
    for name, length in (("first", 32), ("long", 60), ("short", 15)):
        add_request(engine, name, [length % 37] * length, SamplingParams(max_tokens=20))
    scheduler = engine.scheduler
    scheduler.schedule()
    lanes = {lane.group.request.id: lane for lane in scheduler.queues.running}
    assert scheduler.blocks.device.num_free == 0
    plan = SchedulerOutputs(scheduler.step, max_tokens=100)
    assert scheduler.preemption.make_room(lanes["first"], lanes["first"].seqs[0], 33, plan)
    assert plan.preempted == [lanes[victim]] and lanes[victim].status is status


def test_the_next_to_go_is_the_cheapest_that_is_left_when_the_host_fills_up():
    """Swapping costs nothing, but the host has room for one of two; then what is cheapest to
    compute again goes.
    """
    engine = make_engine(Knobs(num_blocks=13, num_cpu_blocks=4, swap_seconds_per_block=0.0))
    for name, length in (("first", 32), ("second", 64), ("third", 60), ("fourth", 30)):
        add_request(engine, name, [length % 37] * length, SamplingParams(max_tokens=20))
    scheduler = engine.scheduler
    scheduler.schedule()
    lanes = {lane.group.request.id: lane for lane in scheduler.queues.running}
    assert scheduler.blocks.device.num_free == 0
    plan = SchedulerOutputs(scheduler.step, max_tokens=200)
    assert scheduler.preemption.make_room(lanes["first"], lanes["first"].seqs[0], 7 * 16, plan)
    assert [(lane.group.request.id, lane.status) for lane in plan.preempted] == [
        ("second", Status.SWAPPED),
        ("fourth", Status.WAITING),
    ]


def test_who_is_behind_nobody_makes_room_for_itself():
    engine = make_engine(Knobs(num_blocks=4, swap_seconds_per_block=float("inf")))
    for name in ("first", "last"):
        add_request(engine, name, [len(name)] * 16, SamplingParams(max_tokens=20))
    scheduler = engine.scheduler
    scheduler.schedule()
    first, last = scheduler.queues.running
    plan = SchedulerOutputs(scheduler.step, max_tokens=100)
    assert not scheduler.preemption.make_room(last, last.seqs[0], 48, plan)
    assert plan.preempted == [last] and scheduler.queues.running == [first]
    assert not scheduler.preemption.make_room(first, first.seqs[0], 64, plan), "the whole cache is not enough"
    assert plan.outgrown == [] and first.seqs[0].num_pending, "but its last token may be on its way"


def test_the_cost_of_a_prompts_token_is_learnt_from_steps_of_prompts():
    engine = make_engine(Knobs())
    for number in range(2):
        add_request(engine, str(number), [number + 1] * 50, SamplingParams(max_tokens=20))
    plan = engine.scheduler.schedule()
    costs = PreemptionCosts(0.0, prefill_seconds_per_token=0.01)
    costs.measured(plan, seconds=2.0)
    assert costs.prefill_seconds_per_token == pytest.approx(0.01 + 0.2 * (0.02 - 0.01))
    plan.num_tokens = 7  # decode rows mostly
    costs.measured(plan, seconds=100.0)
    assert costs.prefill_seconds_per_token == pytest.approx(0.012)


def test_a_lane_is_not_swapped_out_by_the_step_that_loads_a_part_of_it():
    """Its second beam finds no room while the first is loaded, into a block whose content another
    request has computed meanwhile: swaps out come before swaps in, and would copy what was there.
    """
    overrides = {"max_num_seqs": 16, "max_num_batched_tokens": 17, "watermark": 0.0}
    engine = make_engine(Knobs(num_blocks=20, num_cpu_blocks=40, moves_a_step=3, overrides=overrides))
    params = SamplingParams(beam_width=2, max_tokens=60, temperature=0.0, ignore_eos=True)
    add_request(engine, "earlier", [7, 8], SamplingParams(max_tokens=200, ignore_eos=True))
    add_request(engine, "beams", list(range(10, 35)), params)
    scheduler, blocks = engine.scheduler, engine.scheduler.blocks
    while not scheduler.queues.running or min(len(seq.token_ids) for seq in scheduler.queues.running[-1].seqs) < 70:
        engine.step()
    lane = scheduler.queues.running[-1]
    first, second = lane.seqs
    second.token_ids[50] += 1  # as if they had parted there
    del second.block_hashes[3:]
    hashes = [[blocks.prefixes.hash_of(seq, index, b"") for index in range(4)] for seq in (first, second)]
    assert hashes[0][:3] == hashes[1][:3] and hashes[0][3] != hashes[1][3]
    scheduler.queues.requeue(lane)
    for content in hashes[0] + hashes[1][3:]:
        blocks.device.forget(content)
    for content in hashes[0]:
        slot = blocks.host.allocate()
        blocks.host.register(slot, content)
        blocks.host.release(slot)
    scheduler.schedule()
    assert (first.num_computed_tokens, second.num_computed_tokens) == (48, 64)
    blocks.device.register(blocks.device.allocate(), hashes[0][3])
    while blocks.device.num_free:
        blocks.device.allocate()
    plan = scheduler.schedule()
    assert first.num_computed_tokens == 64 and len(plan.blocks_to_swap_in) == 1
    assert plan.preempted == [] and lane.status is Status.RUNNING
