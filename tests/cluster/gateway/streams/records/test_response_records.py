"""Stored responses: whose they are, and what is dropped."""

from cluster.gateway.streams.records.response_records import BATCH_BYTES, RECORD_BYTES, ResponseRecords
from cluster.gateway.streams.records.store_changes import Kept, StoreChanges


def keep(records: ResponseRecords, name: str, record: bytes = b"x") -> None:
    records.write(StoreChanges(kept=[Kept((b"", name), record, 10.0)]), now=0.0)


def found(records: ResponseRecords, *names: str) -> list[bytes | None]:
    return [records.find((b"", name), now=0.0) for name in names]


def test_only_the_owner_finds_one_until_it_is_too_old() -> None:
    records = ResponseRecords()
    records.write(StoreChanges(kept=[Kept((b"one", "resp_1"), b"x", 7.0)]), now=3.0)
    assert records.find((b"one", "resp_1"), now=9.0) == b"x"
    assert records.find((b"two", "resp_1"), now=9.0) is None
    assert records.find((b"one", "resp_1"), now=10.0) is None
    records.write(StoreChanges(forgotten=[(b"two", "resp_1")]), now=9.0)
    assert records.find((b"one", "resp_1"), now=9.0) == b"x"
    records.sweep(now=10.0)
    assert len(records) == 0


def test_one_that_is_forgotten_stays_so_whatever_another_copy_has() -> None:
    records, another = ResponseRecords(), ResponseRecords()
    keep(records, "resp_1")
    keep(another, "resp_1")
    records.write(StoreChanges(forgotten=[(b"", "resp_1"), (b"", "resp_2")]), now=0.0)
    for batch in another.everything(now=0.0):
        records.write(batch, now=0.0)
    keep(records, "resp_2")
    assert found(records, "resp_1", "resp_2") == [None, None] and records.is_forgotten((b"", "resp_1"))
    for batch in records.everything(now=0.0):
        another.write(batch, now=0.0)
    assert found(another, "resp_1") == [None]


def test_the_ids_of_those_that_are_forgotten_are_bounded_and_cost_no_response_its_place() -> None:
    records = ResponseRecords(max_count=2)
    keep(records, "stays")
    for number in range(4):
        records.write(StoreChanges(forgotten=[(b"", str(number))]), now=0.0)
    assert [records.is_forgotten((b"", str(number))) for number in range(4)] == [False, False, True, True]
    assert found(records, "stays") == [b"x"]


def test_another_copy_gets_all_for_the_time_that_is_left() -> None:
    records, copy = ResponseRecords(), ResponseRecords()
    for number in range(5):
        keep(records, str(number), bytes([number]) * (BATCH_BYTES // 2))
    batches = records.everything(now=4.0)
    copy.write(next(batches), now=100.0)
    copy.write(next(batches), now=100.0)
    records.write(StoreChanges(forgotten=[(b"", "4")]), now=4.0)
    for batch in batches:
        assert sum(len(kept.record) for kept in batch.kept) <= BATCH_BYTES
        copy.write(batch, now=100.0)
    assert [copy.find((b"", str(number)), now=105.9) for number in range(5)] == [
        *[bytes([number]) * (BATCH_BYTES // 2) for number in range(4)],
        None,
    ]
    assert copy.find((b"", "0"), now=106.0) is None


def test_the_oldest_are_dropped_beyond_a_number() -> None:
    records = ResponseRecords(max_count=2)
    for number in range(4):
        keep(records, str(number))
    assert found(records, "0", "1", "2", "3") == [None, None, b"x", b"x"]


def test_the_oldest_are_dropped_beyond_a_number_of_bytes() -> None:
    records = ResponseRecords(max_bytes=3 * (RECORD_BYTES + 100))
    for _ in range(3):  # the same one takes its place once
        keep(records, "again", b"x" * 100)
    keep(records, "two", b"y" * 100)
    assert len(records) == 2
    keep(records, "large", b"z" * 200)
    assert [record is not None for record in found(records, "again", "two", "large")] == [False, True, True]
    keep(records, "too large", b"z" * 10_000)
    assert len(records) == 0
