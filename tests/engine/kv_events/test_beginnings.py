"""Which prompts' beginnings an engine's cache still has."""

from dataclasses import replace

from engine.kv_events.beginnings import ADAPTER_PIECES, NAME_BYTES, PIECE_BYTES, Beginnings, names_of
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine

NAMES = [bytes([number]) * NAME_BYTES for number in range(6)]
REQUEST = Request("mine", "a" * PIECE_BYTES * 6, SamplingParams(), beginnings=b"".join(NAMES))
HASHES = [b"hash %d" % number for number in range(23)]  # of 6 pieces of 64 tokens, but for the last block


class Held(set[bytes]):
    block_size = 16

    def holds(self, content: bytes) -> bool:
        return content in self


def lost(beginnings: Beginnings, most: int = 100) -> list[bytes]:
    told = beginnings.take(most)
    return [told[start : start + NAME_BYTES] for start in range(0, len(told), NAME_BYTES)]


def test_a_beginning_is_lost_with_its_last_block_and_told_once() -> None:
    held, beginnings = Held(HASHES), Beginnings()
    beginnings.begun(REQUEST)
    beginnings.ended(REQUEST, 384, HASHES, held)
    assert len(beginnings) == len(NAMES) and lost(beginnings) == []
    for content in HASHES[8:]:
        held.discard(content)
        beginnings.removed(content)
    beginnings.settle(held)
    assert set(lost(beginnings, 2) + lost(beginnings)) == set(NAMES[2:])
    assert lost(beginnings) == []


def test_what_another_tier_has_or_a_request_computes_is_not_lost() -> None:
    held, beginnings = Held(HASHES), Beginnings()
    beginnings.begun(REQUEST)
    beginnings.ended(REQUEST, 384, HASHES, held)
    beginnings.removed(HASHES[-1])
    beginnings.settle(held)
    assert lost(beginnings) == []
    beginnings.begun(replace(REQUEST, id="other", beginnings=b"".join(NAMES[:3])))
    held.clear()
    for content in HASHES:
        beginnings.removed(content)
    beginnings.settle(held)
    assert set(lost(beginnings)) == set(NAMES[3:])


def test_what_is_asked_for_again_before_it_was_told_is_not_lost() -> None:
    held, beginnings = Held(HASHES), Beginnings()
    beginnings.begun(REQUEST)
    beginnings.ended(REQUEST, 384, HASHES, held)
    held.clear()
    for content in HASHES:
        beginnings.removed(content)
    beginnings.settle(held)
    beginnings.begun(replace(REQUEST, beginnings=b"".join(NAMES[:2])))
    assert set(lost(beginnings)) == set(NAMES[2:])


def test_what_was_never_computed_is_lost_when_its_request_ends() -> None:
    beginnings = Beginnings()
    beginnings.begun(REQUEST)
    beginnings.ended(REQUEST, 384, [], Held())
    assert sorted(lost(beginnings)) == sorted(NAMES) and len(beginnings) == 0


def test_a_cleared_cache_is_counted_instead() -> None:
    held, beginnings = Held(HASHES), Beginnings()
    beginnings.begun(REQUEST)
    beginnings.ended(REQUEST, 384, HASHES, held)
    beginnings.cleared()
    assert (len(beginnings), lost(beginnings), beginnings.num_cleared) == (0, [], 1)


def test_names_of_an_adapter_stand_for_no_block() -> None:
    adapter = Adapter("harbour", "/adapters/harbour", "0123", 8)
    assert names_of(replace(REQUEST, adapter=adapter)) == NAMES[ADAPTER_PIECES:]


def test_an_engine_whose_cache_is_full_tells_what_it_has_evicted() -> None:
    engine = make_engine(Knobs(num_blocks=40))
    for number in range(20):
        ids = [number + 1] * 128
        names = b"".join(bytes([number, piece]) * (NAME_BYTES // 2) for piece in range(2))
        add_request(engine, f"r{number}", ids, SamplingParams(max_tokens=2, ignore_eos=True), beginnings=names)
        while engine.has_work:
            engine.step()
    told = lost(engine.keeping.beginnings)
    assert told and len(told) + len(engine.keeping.beginnings) == 40
    assert max(name[0] for name in told) < 19, "the last prompt's is still there"
