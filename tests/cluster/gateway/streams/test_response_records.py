"""Stored responses: whose they are, and what is dropped."""

from cluster.gateway.streams.response_records import RECORD_BYTES, ResponseRecords


def test_only_the_owner_finds_one_until_it_is_too_old() -> None:
    records = ResponseRecords()
    records.keep(b"one", "resp_1", b"x", until=10.0)
    assert records.find(b"one", "resp_1", now=9.0) == b"x"
    assert records.find(b"two", "resp_1", now=9.0) is None
    assert records.find(b"one", "resp_1", now=10.0) is None
    assert not records.forget(b"two", "resp_1")
    records.sweep(now=10.0)
    assert len(records) == 0


def test_it_can_be_forgotten() -> None:
    records = ResponseRecords()
    records.keep(b"", "resp_1", b"x", until=10.0)
    assert [records.forget(b"", "resp_1") for _ in range(2)] == [True, False]
    assert records.find(b"", "resp_1", now=0.0) is None


def test_the_oldest_are_dropped_beyond_a_number() -> None:
    records = ResponseRecords(max_count=2)
    for number in range(4):
        records.keep(b"", str(number), b"x", until=10.0)
    assert [records.find(b"", str(number), now=0.0) for number in range(4)] == [None, None, b"x", b"x"]


def test_the_oldest_are_dropped_beyond_a_number_of_bytes() -> None:
    records = ResponseRecords(max_bytes=3 * (RECORD_BYTES + 100))
    for _ in range(3):  # the same one takes its place once
        records.keep(b"", "again", b"x" * 100, until=10.0)
    records.keep(b"", "two", b"y" * 100, until=10.0)
    assert len(records) == 2
    records.keep(b"", "large", b"z" * 200, until=10.0)
    assert [records.find(b"", name, now=0.0) is not None for name in ("again", "two", "large")] == [False, True, True]
    records.keep(b"", "too large", b"z" * 10_000, until=10.0)
    assert len(records) == 0
