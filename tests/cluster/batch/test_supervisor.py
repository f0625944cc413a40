"""What the supervisor of batches does between two looks, with a real store and without drivers."""

import io
import json
import time
from pathlib import Path

import pytest

from cluster.api.batches import Owner
from cluster.batch.driver import finish
from cluster.batch.files.parts import Parts
from cluster.batch.files.place import Place
from cluster.batch.store import Record, Store
from cluster.batch.supervisor import LATER_SECONDS, MAX_FAILURES, Supervisor, _Running

ONE, OTHER = Owner(key="one", folder="one"), Owner(key="other", folder="other")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Place.at(str(tmp_path)))


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(Place.at(str(tmp_path)), "app")


def create(store: Store, owner: Owner = ONE) -> Record:
    file = store.create_file(owner, "in.jsonl", io.BytesIO(b"{}\n{}\n"))
    return Record(batch=store.create(owner, file.id, "/v1/completions", None), owner=owner)


def running(supervisor: Supervisor, started: list[Record], record: Record) -> None:
    """In place of a driver."""
    started.append(record)
    supervisor._running[record.batch.id] = _Running(record, None, None)


def answer(custom_id: str) -> bytes:
    response = {"status_code": 200, "request_id": "r", "body": {}}
    return json.dumps({"id": "a", "custom_id": custom_id, "response": response, "error": None}).encode()


def test_a_batch_whose_drivers_fail_again_and_again_gives_out_what_was_answered(
    store: Store, supervisor: Supervisor, tmp_path: Path
) -> None:
    record = create(store)
    Parts(store.parts_of(record), "digest").add([answer("first")])
    for _ in range(MAX_FAILURES):
        supervisor._count_failure(record)
    batch = store.batch(ONE, record.batch.id)
    assert batch.status == "failed" and batch.errors is not None
    assert batch.errors.data[0].message.endswith(f"the batch's driver failed {MAX_FAILURES} times")
    assert batch.request_counts.completed == 1 and batch.output_file_id is not None
    assert b"".join(store.content(ONE, batch.output_file_id)) == answer("first") + b"\n"
    assert list((tmp_path / "one" / "parts").iterdir()) == []


def test_a_batch_that_ended_before_its_driver_was_lost_stays_as_it_is(store: Store, supervisor: Supervisor) -> None:
    record = create(store)
    parts = Parts(store.parts_of(record), "digest")
    parts.add([answer("first")])
    finish(store, record, parts, "completed")
    for _ in range(MAX_FAILURES):
        supervisor._count_failure(record)
    batch = store.batch(ONE, record.batch.id)
    assert batch.status == "completed" and batch.request_counts.completed == 1


def test_a_cancelled_batch_with_a_damaged_part_ends_with_the_answers_before_it(
    store: Store, supervisor: Supervisor
) -> None:
    record = create(store)
    parts = Parts(store.parts_of(record), "digest")
    parts.add([answer("first")])
    parts.add([answer("second")])
    (store.parts_of(record) / "0000000001-1.jsonl").write(b"half")
    store.cancel(ONE, record.batch.id)
    assert supervisor._begin([record]) == []
    batch = store.batch(ONE, record.batch.id)
    assert batch.status == "cancelled" and batch.cancelling_at is not None and batch.output_file_id is not None
    assert b"".join(store.content(ONE, batch.output_file_id)) == answer("first") + b"\n"


def test_a_batch_that_is_forgotten_leaves_no_parts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.batch.store.MAX_BATCHES", 1)
    monkeypatch.setattr(Parts, "delete", lambda _: None)  # the process was killed before
    record = create(store)
    parts = Parts(store.parts_of(record), "digest")
    parts.add([answer("first")])
    finish(store, record, parts, "completed")
    create(store)
    assert list((tmp_path / "one" / "parts").iterdir()) == []


def test_a_damaged_batch_and_a_folder_of_no_owner_hold_up_no_others(
    store: Store, supervisor: Supervisor, tmp_path: Path
) -> None:
    record = create(store)
    (tmp_path / "one" / "batches" / f"batch_{'0' * 32}.json").write_bytes(b"")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "batches").write_bytes(b"no folder")
    assert [each.batch.id for each in supervisor._unfinished()] == [record.batch.id]
    assert [batch.id for batch in store.batches(ONE)] == [record.batch.id]


def test_a_batch_that_cannot_be_ended_holds_up_no_others(
    store: Store, supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Record] = []
    monkeypatch.setattr("cluster.batch.supervisor.MAX_RUNNING", 1)
    monkeypatch.setattr(supervisor, "_start", lambda record: running(supervisor, started, record))
    hindered, right = create(store), create(store)
    store.cancel(ONE, hindered.batch.id)
    (tmp_path / "one" / "parts").mkdir()
    (tmp_path / "one" / "parts" / hindered.batch.id).write_bytes(b"no folder")
    assert supervisor._begin([hindered, right]) == []
    assert started == [right]


def test_a_lost_driver_of_a_batch_that_is_gone_is_forgotten(store: Store, supervisor: Supervisor) -> None:
    record = create(store)
    (store._batches("one") / f"{record.batch.id}.json").delete()
    supervisor._count_failure(record)


def test_of_two_batches_one_is_each_owners(
    store: Store, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Record] = []
    monkeypatch.setattr(supervisor, "_start", lambda record: running(supervisor, started, record))
    first, second, others = create(store), create(store), create(store, OTHER)
    assert supervisor._begin([first, second, others]) == [second]
    assert started == [first, others]


def test_a_batch_is_not_ended_while_its_killed_driver_may_write(store: Store, supervisor: Supervisor) -> None:
    record = create(store)
    parts = Parts(store.parts_of(record), "digest")
    parts.add([answer("first")])
    store.cancel(ONE, record.batch.id)
    (read_before,) = supervisor._unfinished()
    supervisor._not_before[record.batch.id] = time.monotonic() + LATER_SECONDS
    assert supervisor._begin([read_before]) == [read_before]
    finish(store, record, parts, "completed")  # by the driver, in its last moment
    supervisor._not_before.clear()
    assert supervisor._begin([read_before]) == []
    batch = store.batch(ONE, record.batch.id)
    assert batch.status == "completed" and batch.output_file_id is not None


def test_a_cancellation_of_which_only_the_name_reached_the_disk_counts(store: Store, supervisor: Supervisor) -> None:
    record = create(store)
    (store._batches("one") / f"{record.batch.id}.cancel").write(b"")
    assert [batch.status for batch in store.batches(ONE)] == ["cancelling"]
    assert supervisor._wish(record) == "cancelled"
