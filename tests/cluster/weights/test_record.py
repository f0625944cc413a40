"""What is written down of changes of weights."""

import pytest

from cluster.head import store
from cluster.weights import record
from engine.executor import Weights


def test_the_change_of_the_highest_number_is_the_last(key_values) -> None:
    kept = record.WeightsRecord("squadron", "engines", "run", "/model")
    assert kept.read() == record.NONE
    first, second = kept.claim(1), kept.claim(1)
    assert (first, second) == (1, 2)
    folder = Weights("new", "digest", folder="/new", sample="a")
    assert kept.write(second, folder)
    assert not kept.write(first, None), "which was slower"
    assert kept.read() == record.Change(2, folder, "new")
    assert kept.write(3, Weights("objects", "digest", tensors={}))
    assert kept.read() == record.Change(3, None, "objects", are_elsewhere=True)
    assert record.WeightsRecord("squadron", "engines", "the next run", "/model").read() == record.NONE
    assert record.WeightsRecord("squadron", "engines", "run", "/another").read() == record.NONE


def test_of_two_that_are_written_at_once_the_later_counts(key_values, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = record.WeightsRecord("squadron", "engines", "run", "/model")
    first, second = kept.claim(1), kept.claim(1)
    read = kept.read

    def read_then_another_writes() -> record.Change:
        found = read()
        monkeypatch.undo()
        monkeypatch.setattr(store, "internal_kv", key_values)
        assert kept.write(second, Weights("later", "digest", folder="/later", sample="b"))
        return found

    monkeypatch.setattr(kept, "read", read_then_another_writes)
    kept.write(first, None)
    assert (kept.read().number, kept.read().version) == (second, "later")
    assert kept.claim(1) == 3


def test_numbers_that_are_claimed_for_nothing_are_passed_over(key_values) -> None:
    kept = record.WeightsRecord("squadron", "engines", "run", "/model")
    assert [kept.claim(1) for _ in range(3)] == [1, 2, 3]
    kept.write(1, None)
    assert (kept.read().number, kept.claim(1)) == (1, 4)


def test_keys_of_changes_long_ago_are_deleted(key_values, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT", 3)
    kept = record.WeightsRecord("squadron", "engines", "run", "/model")
    for _ in range(20):
        kept.write(kept.claim(1), None)
        kept.rest.change("pause", "keep")
    assert (kept.read().number, kept.rest.read().number, kept.claim(1)) == (20, 20, 21)
    assert len(key_values) == 2 * (1 + store.KEPT) + 1
