"""What is stored in files and fetched from them, and when it counts."""

import gc

import pytest

from engine.config import STORES_A_STEP
from engine.core.llm_engine import LLMEngine
from engine.offload.known import Known
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.tiers.shelf import STEPS_BEFORE_STORE, Shelf
from tests.engine.support.workloads import VOCAB, Knobs, Request, add_request, make_engine, run

A, B = bytes(16), bytes([1]) * 16


def make_shelf(num_host: int = 8, *contents: bytes) -> tuple[BlockPool, Shelf, Known]:
    known = Known()
    known.contents.update(contents)
    host = BlockPool(num_host)
    return host, Shelf(host, known), known


def keep(host: BlockPool, shelf: Shelf, content: bytes) -> int:
    slot = host.allocate()
    host.register(slot, content)
    host.release(slot)
    shelf.saved(slot, content)
    return slot


def test_a_block_is_stored_some_steps_after_it_was_saved_and_once() -> None:
    host, shelf, known = make_shelf()
    slot = keep(host, shelf, A)
    for _ in range(STEPS_BEFORE_STORE):
        assert shelf.take_transfers() == ([], []) and shelf.has_unstored
    assert shelf.take_transfers() == ([(slot, A)], [])
    assert A in known.contents and not shelf.has_unstored and shelf.num_stored == 1
    keep(host, shelf, A)
    assert not shelf.has_unstored, "it is there"


def test_a_block_is_not_stored_by_the_step_that_brings_it_to_its_slot_again() -> None:
    """Stores come first in a step: the slot still holds what took the block's place."""
    host, shelf, known = make_shelf(1)
    slot = keep(host, shelf, A)
    for _ in range(STEPS_BEFORE_STORE):
        shelf.take_transfers()
    keep(host, shelf, B)
    keep(host, shelf, A)
    assert shelf.take_transfers(written={slot}) == ([], []) and A not in known.contents
    stored = [shelf.take_transfers()[0] for _ in range(STEPS_BEFORE_STORE + 1)]
    assert [each for each in stored if each] == [[(slot, A)]]


def test_what_the_host_has_evicted_is_not_stored_and_the_rest_a_few_at_a_time() -> None:
    host, shelf, _ = make_shelf(40)
    for number in range(30):
        keep(host, shelf, bytes([number]) * 16)
    taken = [host.allocate() for _ in range(15)]  # ten of them were blank
    stored = []
    for _ in range(6):
        some, _ = shelf.take_transfers()
        assert len(some) <= STORES_A_STEP
        stored += [slot for slot, _ in some]
    assert len(stored) == 25 and not set(stored) & set(taken)


def test_a_step_keeps_nothing_for_what_waits_to_be_stored() -> None:
    """However long that takes: what is left is counted in each."""
    host, shelf, _ = make_shelf(1000)
    for number in range(1000):
        keep(host, shelf, number.to_bytes(16, "big"))
    for _ in range(STEPS_BEFORE_STORE):
        shelf.take_transfers()
    before = num_lists()
    num_stored = sum(len(shelf.take_transfers()[0]) for _ in range(40))
    assert num_stored == 40 * STORES_A_STEP and shelf.num_unstored == 1000 - num_stored
    assert num_lists() < before + 10


def num_lists() -> int:
    return sum(type(each) is list for each in gc.get_objects())


def test_a_fetched_block_is_found_once_all_ranks_have_it() -> None:
    host, shelf, _ = make_shelf(8, A)
    assert shelf.fetch(A) and shelf.fetch(A) and not shelf.fetch(B)
    (slot,) = shelf.held()
    assert shelf.take_transfers() == ([], [(slot, A)]) and shelf.take_transfers() == ([], [])
    shelf.answered([[slot, 1]], num_ranks=2)
    assert host.lookup(A) is None and host.num_free == 7
    shelf.answered([[slot, 1]], num_ranks=2)
    assert host.lookup(A) == slot and host.num_free == 8 and shelf.num_fetched == 1


def test_a_block_that_one_rank_could_not_read_is_not_there() -> None:
    host, shelf, known = make_shelf(8, A)
    shelf.fetch(A)
    (slot,) = shelf.held()
    shelf.answered([[slot, 1], [slot, 0]], num_ranks=2)
    assert host.lookup(A) is None and host.num_free == 8 and shelf.num_missed == 1
    assert A not in known.contents and not shelf.fetch(A)
    keep(host, shelf, A)
    assert shelf.has_unstored, "it is stored again"


def test_reads_take_no_more_than_half_of_the_host() -> None:
    contents = [bytes([number]) * 16 for number in range(8)]
    _, shelf, _ = make_shelf(8, *contents)
    assert [shelf.fetch(content) for content in contents] == [True] * 4 + [False] * 4


def test_what_is_distrusted_while_it_is_fetched_does_not_count() -> None:
    host, shelf, known = make_shelf(8, A)
    shelf.fetch(A)
    shelf.distrust(A)
    shelf.answered([[shelf.held()[0], 1]], num_ranks=1)
    assert host.lookup(A) is None and known.distrusted() == {A}


@pytest.mark.parametrize("num_cpu_blocks", [4, 12, 23, 24, 200])
def test_a_conversation_longer_than_the_host_comes_back_as_far_as_that_holds_it(num_cpu_blocks: int) -> None:
    prompt = [number * 7 % VOCAB for number in range(24 * 16 + 5)]
    params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0)
    answers = []
    files: dict[bytes, object] = {}
    known: set[bytes] = set()
    for size in (200, num_cpu_blocks):  # the second engine finds what the first has stored
        engine = make_engine(Knobs(num_blocks=60, num_cpu_blocks=size, third_tier="whole"))
        engine.executor.files.update(files)
        engine.keeping.known.contents |= known
        answers.append(run(engine, [Request("r", prompt, params, 0, None)])["r"])
        files, known = engine.executor.files, engine.keeping.known.contents
    assert answers[0].outputs == answers[1].outputs
    assert answers[1].num_cached_tokens >= min(num_cpu_blocks // 2, 24) * 16
    assert engine.scheduler.blocks.shelf.num_fetched <= 24, "each is read once"


PROMPT = [number * 7 % VOCAB for number in range(4 * 16 + 5)]
PARAMS = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)


def engine_that_knows_it() -> LLMEngine:
    """Another one has computed and stored the prompt, and this one can read it."""
    first, second = (make_engine(Knobs(num_blocks=60, num_cpu_blocks=60, third_tier="whole")) for _ in range(2))
    run(first, [Request("r", PROMPT, PARAMS, 0, None)])
    second.executor.files.update(first.executor.files)
    second.keeping.known.contents |= first.keeping.known.contents
    return second


def test_who_waits_for_a_read_is_waiting() -> None:
    second = engine_that_knows_it()
    for number in range(3):
        add_request(second, f"r{number}", PROMPT, PARAMS)
    second.scheduler.schedule()
    stats = second.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 3)
    assert stats.num_waiting_tokens == 3 * len(PROMPT)


def test_reads_that_never_end_hold_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [number * 7 % VOCAB for number in range(4 * 16 + 5)]
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)
    first, second = (make_engine(Knobs(num_blocks=60, num_cpu_blocks=60, third_tier="whole")) for _ in range(2))
    expected = run(first, [Request("r", prompt, params, 0, None)])["r"].outputs
    second.keeping.known.contents |= first.keeping.known.contents
    monkeypatch.setattr(second.scheduler.third_tier, "fetched", lambda *_: None)
    shelf = second.scheduler.blocks.shelf
    add_request(second, "r", prompt, params)
    assert not any(second.step() for _ in range(20))
    monkeypatch.setattr("engine.scheduling.tiers.shelf.FETCH_SECONDS", 0.0)
    deltas = []
    while second.has_unfinished_requests():
        deltas += second.step()
    assert [token_id for delta in deltas for token_id in delta.outputs[0].token_ids] == expected[0].token_ids
    assert shelf.is_late and len(shelf.held()) == 4, "they may still be written to"
    assert run(second, [Request("again", prompt, params, 0, None)])["again"].outputs == expected
    shelf.answered([[slot, 1] for slot in shelf.held()], num_ranks=1)
    assert not shelf.is_late and shelf.num_fetched == 4


def test_reads_that_come_one_by_one_hold_a_request_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in time, and all together far too late."""
    prompt = [number * 7 % VOCAB for number in range(4 * 16 + 5)]
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)
    first, second = (make_engine(Knobs(num_blocks=60, num_cpu_blocks=60, third_tier="whole")) for _ in range(2))
    expected = run(first, [Request("r", prompt, params, 0, None)])["r"].outputs
    second.keeping.known.contents |= first.keeping.known.contents
    whole = second.scheduler.third_tier.fetched
    monkeypatch.setattr(second.scheduler.third_tier, "fetched", lambda *_: whole([], 1))
    add_request(second, "r", prompt, params)
    assert not any(second.step() for _ in range(20))
    monkeypatch.setattr("engine.scheduling.tiers.prefix_index.SEEK_SECONDS", 0.0)
    second.scheduler.third_tier.fetched([], 1)
    deltas = []
    while not deltas or not deltas[-1].finished:
        deltas += second.step()
    assert [token_id for delta in deltas for token_id in delta.outputs[0].token_ids] == expected[0].token_ids
    shelf = second.scheduler.blocks.shelf
    assert not shelf.is_late and shelf.num_fetching == 4
    shelf.answered([[slot, 1] for slot in shelf.held()], num_ranks=1)


def test_who_stores_nothing_reads_what_it_is_told_of() -> None:
    known = Known()
    shelf = Shelf(BlockPool(8), known, stores_a_step=0)
    for _ in range(10 * STEPS_BEFORE_STORE):
        assert shelf.take_transfers() == ([], [])
    assert not shelf.fetch(A)
    shelf.expect([A, B])
    assert shelf.fetch(A) and shelf.fetch(B)
    assert shelf.addresses_of(shelf.take_transfers()[1]) == []


def test_what_another_node_serves_is_fetched_from_there() -> None:
    _, shelf, known = make_shelf(8, A)
    shelf.expect([B], "10.0.0.2:7000")
    assert shelf.fetch(A) and shelf.fetch(B)
    _, fetched = shelf.take_transfers()
    assert shelf.addresses_of(fetched) == ["", "10.0.0.2:7000"]
    shelf.answered([[slot, 0] for slot in shelf.held()], num_ranks=1)
    assert not shelf.fetch(A) and not shelf.fetch(B), "it was not there"
    assert not known.has(B)


def test_requests_are_counted_while_blocks_are_read_for_them_and_until_they_begin() -> None:
    second = engine_that_knows_it()
    scheduler, shelf = second.scheduler, second.scheduler.blocks.shelf

    def counts() -> tuple[int, int, int]:
        stats = second.stats()
        return stats.num_requests_waiting, stats.num_requests_fetching, stats.num_requests_fetched

    for number in range(3):
        add_request(second, f"r{number}", PROMPT, PARAMS)
    assert counts() == (3, 0, 0)
    scheduler.schedule()
    assert counts() == (3, 3, 0)
    *slots, last = shelf.held()
    for slot in slots:
        scheduler.third_tier.fetched([[slot, 1]], num_ranks=1)
        assert counts() == (3, 3, 0), "another block is still being read"
        scheduler.schedule()
        assert counts() == (3, 3, 0)
    scheduler.third_tier.fetched([[last, 1]], num_ranks=1)
    assert counts() == (3, 0, 3)
    second.requests.abort("r2")
    assert counts() == (2, 0, 2)
    add_request(second, "other", [1] * 20, PARAMS)
    assert counts() == (3, 0, 2)


def test_tokens_that_are_read_for_a_request_are_told_from_those_that_the_host_had() -> None:
    second = engine_that_knows_it()

    def found() -> tuple[int, int, int]:
        measured = second.recorder.measures.copy()
        return measured.num_cached_tokens, measured.num_host_tokens, measured.num_brought_tokens

    run(second, [Request("read", PROMPT, PARAMS, 0, None)])
    assert found() == (64, 64, 64)
    run(second, [Request("on the device", PROMPT, PARAMS, 0, None)])
    assert found() == (128, 64, 64)
    for block in second.scheduler.blocks.device.indexed(100):
        second.scheduler.blocks.device.forget(second.scheduler.blocks.device.content_of(block))
    run(second, [Request("on the host", PROMPT, PARAMS, 0, None)])
    assert found() == (192, 128, 64)


def test_what_is_wanted_for_a_while_is_over_then() -> None:
    host = BlockPool(8)
    shelf = Shelf(host, Known(), 0, seconds=-1.0)
    shelf.expect([A], "there")
    assert shelf.is_over and shelf.fetch(A)
    assert not shelf.is_over, "it is being read"
    shelf.answered([[shelf.held()[0], False]], 1)
    assert shelf.is_over
    shelf.want(1000.0)
    assert not shelf.is_over
    shelf.want(-1.0)
    assert not shelf.is_over, "others still want it"
    shelf.expect([B], "there")
    shelf.forget()
    assert not shelf.has(B)
