"""What is stored of streams, and when it is dropped."""

import pickle

from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.records.stream_records import NUM_AT_ONCE, StreamRecords


def record() -> StreamRecord:
    return StreamRecord(b"", 0, 0)


def test_what_is_remembered_is_bounded_in_bytes() -> None:
    records = StreamRecords(max_bytes=10_000)
    for number in range(5):
        records.write(StoreChanges(opened={f"s{number}": record()}), now=0.0)
    records.write(StoreChanges(told=[Told("s1", 0, [7] * 30, 1, 0, 99), Told("s0", 0, [7] * 60, 1, 0, 99)]), now=1.0)
    assert [number for number in range(5) if records.find(f"s{number}", 1.0) is not None] == [0, 1, 4]


def test_what_is_remembered_is_bounded_in_age() -> None:
    records = StreamRecords()
    records.write(StoreChanges(opened={"open": record(), "closed": record()}), now=0.0)
    records.write(StoreChanges(closed=["closed"]), now=10.0)
    assert records.find("closed", 129.0) is not None and records.find("closed", 130.0) is None
    records.write(StoreChanges(told=[Told("open", 0, [1], 0, 0, 99)]), now=100.0)
    records.sweep(3600.0)
    assert records.find("open", 3699.0) is not None
    records.sweep(3700.0)
    assert records.find("open", 0.0) is None


def test_tokens_are_taken_once_and_in_order() -> None:
    records = StreamRecords()
    records.write(StoreChanges(opened={"s": record()}), now=0.0)
    batches = [
        Told("s", 0, [5, 6], 1, 3, 40),
        Told("s", 3, [9], 9, 0, 50),
        Told("s", 1, [6, 7], 2, 0, 50),
        Told("t", 0, [1], 0, 0, 50),
    ]
    records.write(StoreChanges(told=batches), now=0.0)
    known = records.find("s", 0.0)
    assert known is not None
    assert (known.token_ids, known.num_events, known.num_cached_tokens) == ([5, 6, 7], [1, 1, 2], 3)
    assert known.max_tokens == 40


def test_another_copy_gets_all_and_loses_nothing_that_it_knows() -> None:
    records, copy = StreamRecords(), StreamRecords()
    for number in range(NUM_AT_ONCE + 1):
        records.write(StoreChanges(opened={f"s{number}": record()}), now=0.0)
    told = Told("s0", 0, [5, 6], 1, 3, 40)
    records.write(StoreChanges(told=[told], closed=["s1"]), now=0.0)
    behind = next(records.everything(now=0.0))
    behind.opened["s2"] = record()
    known = StreamRecord(b"", 0, 0, fingerprint="fp")
    records.write(StoreChanges(opened={"s2": known}, told=[Told("s2", 0, [7], 1, 0, 40)]), now=0.0)
    for batch in [*records.everything(now=0.0), behind]:
        copy.write(pickle.loads(pickle.dumps(batch)), now=50.0)  # as it comes from another process
    assert len(copy) == NUM_AT_ONCE + 1
    assert copy.find("s0", 50.0) == records.find("s0", 0.0)
    assert copy.find("s1", 169.0) is not None and copy.find("s1", 170.0) is None, "it was no longer read"
    kept = copy.find("s2", 50.0)
    assert kept is not None and (kept.fingerprint, kept.token_ids) == ("fp", [7])
