"""Files and batches on this machine and in an object store: S3's protocol, spoken by moto's server
in this process.
"""

import io
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api.batches import Batch, Owner
from cluster.api.errors import ApiError
from cluster.batch.driver import finish
from cluster.batch.files.parts import Parts
from cluster.batch.files.place import Place
from cluster.batch.store import Store
from engine.errors import InvalidConfig
from tests.cluster.batch.files.test_parts import line
from tests.object_store import object_store

LINE = b'{"custom_id": "a"}\n'


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A URI of a folder in a bucket."""
    with object_store() as uri:
        yield uri


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of this test alone."""
    if request.param == "folder":
        return Place.at(str(tmp_path))
    return Place.at(request.getfixturevalue("s3")) / tmp_path.name


def test_what_is_written_is_there(place: Place) -> None:
    file = place / "inner" / "file"
    (place / "inner").make_folder()
    assert not file.is_file and (place / "inner").names() == []
    file.write(b"0123456789" * 200_000)
    assert file.is_file and file.num_bytes == 2_000_000
    assert file.part(1_999_995, 5) == b"56789"
    assert sum(map(len, file.chunks())) == 2_000_000
    assert (place / "inner").names() == ["file"] and place.folders() == ["inner"]
    file.delete()
    assert not file.is_file and (place / "nowhere").names() == []


def test_what_was_not_written_to_its_end_is_not_there(place: Place) -> None:
    place.make_folder()
    file = place / "file"
    with pytest.raises(ValueError, match="halfway"), file.writing() as stream:
        stream.write(LINE)
        raise ValueError("halfway")
    assert not file.is_file and place.names() == []


def test_data_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = Place.at(str(tmp_path / "file")), list[tuple[int, bool]]()

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.is_file))

    monkeypatch.setattr(os, "fsync", fsync)
    file.write(LINE)
    assert synced == [((tmp_path / "file").stat().st_ino, False)]


@pytest.mark.parametrize(("most_bytes", "num_bytes"), [(100_000, 300_000), (50, 20)], ids=["data", "record"])
def test_of_a_file_that_the_disk_has_no_room_for_nothing_is_left(
    tmp_path: Path, most_bytes: int, num_bytes: int
) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    store, ada = Store(Place.at(str(tmp_path))), Owner("ada", "ada")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.create_file(ada, "in.jsonl", io.BytesIO(bytes(num_bytes)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert store.files(ada) == [] and [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_and_batches_of_two_owners(place: Place) -> None:
    store = Store(place)
    ada, bob = Owner("ada", "ada"), Owner("bob", "bob")
    made = store.create_file(ada, "in.jsonl", io.BytesIO(LINE))
    assert store.files(ada) == [made] and store.files(bob) == [] and made.bytes == len(LINE)
    assert b"".join(store.content(ada, made.id)) == LINE
    with pytest.raises(ApiError):
        store.file(bob, made.id)
    batch = store.create(ada, made.id, "/v1/completions", {"a": "b"})
    assert store.batches(ada) == [batch] and store.batches(bob) == []
    assert store.cancel(ada, batch.id).status == "cancelling"
    with pytest.raises(ApiError, match="cancel it first"):
        store.delete_file(ada, made.id)


class Deleting(Store):
    """Another request deletes a file while this one deletes it, too."""

    def batches(self, owner: Owner) -> list[Batch]:
        other = Store(self._folder)
        for file in other.files(owner):
            other.delete_file(owner, file.id)
        return super().batches(owner)


def test_a_file_that_two_requests_delete_at_once(place: Place) -> None:
    store, ada = Deleting(place), Owner("ada", "ada")
    made = store.create_file(ada, "in.jsonl", io.BytesIO(LINE))
    with pytest.raises(ApiError, match="There is no file") as refused:
        store.delete_file(ada, made.id)
    assert refused.value.status == 404


def test_a_list_lacks_what_is_deleted_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ada = Store(place), Owner("ada", "ada")
    gone, kept = (store.create_file(ada, "in.jsonl", io.BytesIO(LINE)) for _ in range(2))
    names = Place.names

    def names_then_deleted(folder: Place) -> list[str]:
        found = names(folder)
        monkeypatch.undo()
        store.delete_file(ada, gone.id)
        return found

    monkeypatch.setattr(Place, "names", names_then_deleted)
    assert store.files(ada) == [kept]


@pytest.mark.parametrize("damage", [b"", b'{"id": "fi', b"\xff"])
def test_a_list_lacks_what_is_damaged(place: Place, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store, ada = Store(place), Owner("ada", "ada")
    damaged, kept = (store.create_file(ada, "in.jsonl", io.BytesIO(LINE)) for _ in range(2))
    (place / "ada" / "files" / f"{damaged.id}.json").write(damage)
    assert store.files(ada) == [kept]
    assert f"{damaged.id}.json is damaged" in caplog.text
    store.delete_file(ada, damaged.id)
    assert (place / "ada" / "files").names() == [f"{kept.id}.data", f"{kept.id}.json"]


def test_a_batch_that_has_ended(place: Place) -> None:
    store, ada = Store(place), Owner("ada", "ada")
    batch = store.create(ada, store.create_file(ada, "in.jsonl", io.BytesIO(LINE)).id, "/v1/completions", None)
    (record,) = store.records(ada.folder)
    parts = Parts(store.parts_of(record), "digest")
    parts.add([line(0), line(1, status=400), line(2)])
    finish(store, record, parts, "completed")
    ended = store.batch(ada, batch.id)
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", 2, 1)
    assert b"".join(store.content(ada, ended.output_file_id)).splitlines() == [line(0), line(2)]
    assert b"".join(store.content(ada, ended.error_file_id)).splitlines() == [line(1, status=400)]


def test_the_oldest_batch_that_has_ended_makes_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.batch.store.MAX_BATCHES", 2)
    store, ada = Store(place), Owner("ada", "ada")
    file_id = store.create_file(ada, "in.jsonl", io.BytesIO(LINE)).id
    first, second = (store.create(ada, file_id, "/v1/completions", None).id for _ in range(2))
    with pytest.raises(ApiError, match="2 batches have not ended"):
        store.create(ada, file_id, "/v1/completions", None)
    store.cancel(ada, second)
    (record,) = (record for record in store.records(ada.folder) if record.batch.id == second)
    finish(store, record, Parts(store.parts_of(record), "digest"), "cancelled")
    third = store.create(ada, file_id, "/v1/completions", None).id
    assert {batch.id for batch in store.batches(ada)} == {first, third}


def test_answers_go_on_where_they_were(place: Place) -> None:
    first = Parts(place / "parts", "digest")
    first.add([line(0), line(1)])
    second = Parts(place / "parts", "digest")
    assert second.num_lines == 2
    second.add([line(2)])
    second.join(place / "out")
    assert (place / "out").read().splitlines() == [line(0), line(1), line(2)]
    second.delete()
    assert (place / "parts").names() == []
    with pytest.raises(InvalidConfig, match="another input"):
        for digest in ("digest", "changed"):
            Parts(place / "other", digest)


def test_a_place_that_is_refused_does_not_tell_its_secret() -> None:
    with pytest.raises(InvalidConfig) as refused:
        Place.at("s3://key:secret@bucket/x?regoin=eu")
    assert "regoin" in str(refused.value) and "secret" not in str(refused.value)
