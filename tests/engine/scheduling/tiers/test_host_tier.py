"""What is copied to the host, and when."""

import random

from engine.offload.known import Known
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.tiers.host_tier import HostTier
from engine.scheduling.tiers.shelf import STEPS_BEFORE_STORE, Shelf
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import VOCAB, Knobs, finish, make_engine


def make_tier(num_host: int = 4, moves_a_step: int = 64) -> tuple[BlockPool, BlockPool, HostTier]:
    device, host = BlockPool(9, first=1), BlockPool(num_host)
    tier = HostTier(device, host, None)
    tier.moves_a_step = moves_a_step
    return device, host, tier


def write(device: BlockPool, tier: HostTier, count: int, first: int = 0) -> list[int]:
    """So many blocks, of requests that have ended."""
    blocks = []
    for number in range(first, first + count):
        block = device.allocate()
        assert device.register(block, bytes([number]))
        tier.written(block, bytes([number]))
        blocks.append(block)
    for block in blocks:
        device.release(block)
    return blocks


def test_nothing_is_copied_while_most_blocks_were_never_needed() -> None:
    device, _, tier = make_tier()
    write(device, tier, 4)
    assert tier.save() == tier.save() == []
    write(device, tier, 1, first=4)
    assert (len(tier.save()), len(tier.save())) == (4, 1)


def test_blocks_are_copied_in_order_a_step_after_they_were_written_and_found_then() -> None:
    device, host, tier = make_tier(moves_a_step=2)
    blocks = write(device, tier, 5)
    assert tier.save() == [], "this step has yet to write them"
    moves = [move for _ in range(3) for move in tier.save()]
    assert [block for block, _ in moves] == blocks
    assert [host.lookup(bytes([number])) for number in range(1, 5)] == [slot for _, slot in moves[1:]]
    assert host.lookup(bytes([0])) is None, "the oldest has given way"
    assert host.num_free == 4, "all do, to preempted requests"


def test_what_was_evicted_or_is_there_already_is_not_copied() -> None:
    device, host, tier = make_tier()
    write(device, tier, 8)
    tier.save()
    taken = [device.allocate(), device.allocate()]
    slot = host.allocate()
    host.register(slot, bytes([4]))
    moves = tier.save()
    assert len(moves) == 5 and not {block for block, _ in moves} & set(taken)


def test_a_block_that_gets_the_same_content_again_waits_for_its_step() -> None:
    device, _, tier = make_tier()
    write(device, tier, 8)
    tier.save()
    again = device.allocate()
    device.register(again, bytes([0]))
    tier.written(again, bytes([0]))
    assert again not in [block for block, _ in tier.save()]
    assert [block for block, _ in tier.save()] == [again]


def test_a_conversation_that_comes_back_after_a_thousand_others_computes_its_new_tokens_alone() -> None:
    engine = make_engine(Knobs(num_blocks=60, num_cpu_blocks=9000))
    numbers = random.Random(1)
    prompts = [[numbers.randrange(VOCAB) for _ in range(60)] for _ in range(1001)]

    def turn(name: str, prompt: list[int]) -> tuple[list[int], int]:
        add_request(engine, name, prompt, SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0))
        answer = finish(engine)[name]
        return prompt + answer.outputs[0].token_ids, answer.num_cached_tokens

    first, _ = turn("first", prompts[0])
    for number, prompt in enumerate(prompts[1:]):
        add_request(engine, f"other {number}", prompt, SamplingParams(max_tokens=1))
        if number % 10 == 9:  # more at once could take a block that no step has had the time to copy
            finish(engine)
    history = [*first, *prompts[1][:30]]
    again, num_cached = turn("again", history)
    assert num_cached == (len(first) - 1) // 16 * 16  # the last token was never computed
    assert engine.stats().num_external_hits == num_cached
    alone = make_engine(Knobs())
    add_request(alone, "r", history, SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0))
    assert history + finish(alone)["r"].outputs[0].token_ids == again


def test_a_host_without_blocks_keeps_nothing() -> None:
    device, _, tier = make_tier(num_host=0)
    write(device, tier, 8)
    assert tier.save() == tier.save() == [] and not tier.has_unsaved


def test_a_choice_that_is_loaded_goes_on_where_another_one_starts_over() -> None:
    """Blocks that the other one found were not finite, so the request finds no more of them."""
    prompt = [number * 5 % VOCAB for number in range(70)]
    params = SamplingParams(n=2, max_tokens=60, seed=1, ignore_eos=True)
    outputs = [[number * step % 31 for number in range(50)] for step in (3, 7)]

    def answer(poison: set[int]) -> tuple[object, list[int]]:
        knobs = Knobs(num_blocks=40, num_cpu_blocks=200, overrides={"max_num_batched_tokens": 32})
        engine, total = make_engine(knobs), Accumulator()
        for number, tokens in enumerate((prompt + outputs[0], prompt + outputs[1], [1] * 500, [2] * 500)):
            add_request(engine, f"before {number}", tokens, SamplingParams(max_tokens=8, ignore_eos=True))
            finish(engine)
        engine.scheduler.blocks.host_tier.moves_a_step = 1
        engine.executor.poison = poison
        add_request(engine, "r", prompt, params, output_ids=outputs, cumulative_logprobs=[0.0, 0.0])
        lanes = engine.requests._groups["r"].lanes
        loading: list[int] = []  # steps that sample the first choice while the other one is loaded
        while engine.has_unfinished_requests():
            for output in engine.step():
                total.add(output)
            last = engine.scheduler.step - 1
            if len(lanes) == 2 and lanes[1].seqs[0].host_block_table and lanes[0].last_step == last:
                loading.append(last)
        return [(choice.finish_reason, choice.token_ids) for choice in total.choices.values()], loading

    expected, loading = answer(set())
    assert loading
    assert answer({loading[0]})[0] == expected


def test_what_is_done_is_counted_in_the_order_in_which_it_was_written() -> None:
    device, host = BlockPool(9, first=1), BlockPool(16)
    shelf = Shelf(host, Known(), stores_a_step=3)
    tier = HostTier(device, host, shelf, 3)
    counts = []
    write(device, tier, 4)
    for _ in range(STEPS_BEFORE_STORE + 4):
        tier.save()
        shelf.take_transfers()
        counts.append((tier.num_written, tier.num_done))
    assert counts[0] == (4, 0) and counts[-1] == (4, 4)
    assert [done for _, done in counts] == sorted(done for _, done in counts) and (4, 3) in counts
    assert not tier.has_unsaved and not shelf.has_unstored


def test_an_engine_that_is_to_end_stores_what_it_is_told_first_and_in_order() -> None:
    device, host, tier = make_tier(num_host=16)
    write(device, tier, 5)
    shelf = Shelf(host, Known(), 0)
    kept = host.allocate()
    host.register(kept, b"kept")
    tier.leave([b"kept", bytes([3]), bytes([1]), b"gone"], shelf, apart=True)
    num_written = tier.num_written
    write(device, tier, 1, first=5)
    stored: list[bytes] = []
    for _ in range(3 + STEPS_BEFORE_STORE):
        assert (tier.num_done >= num_written) == (set(stored) >= {b"kept", bytes([3]), bytes([1])})
        moves = tier.save()
        stored += [content for _, content in shelf.take_transfers({slot for _, slot in moves})[0]]
    assert stored == [b"kept", bytes([3]), bytes([1]), bytes([5])]
    assert not tier.has_unsaved and not shelf.has_unstored
