"""Files and batches in a folder, of this machine or of an object store: a folder for each API key.

OWNER/files/ID.json, ID.data     a file, and what is known of it, which is written last
OWNER/batches/ID.json            a batch, written by the process that runs it
OWNER/batches/ID.cancel          it is to end
OWNER/parts/ID/                  the answers so far (see `Parts`)
"""

import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, TypeVar

import msgspec

from cluster.api.batches import (
    ENDED,
    MAX_BATCHES,
    MAX_FILES,
    WINDOW_SECONDS,
    Batch,
    FileObject,
    Owner,
)
from cluster.api.errors import ApiError
from cluster.batch.files.place import BUFFER_BYTES, Place
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

_ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")
RECORD, DATA, CANCEL = ".json", ".data", ".cancel"


Stored = TypeVar("Stored")


class Record(msgspec.Struct, kw_only=True):
    """A batch as it is stored."""

    batch: Batch
    owner: Owner


class Store:
    """Methods raise OSError, and ApiError for what clients ask that cannot be."""

    def __init__(self, folder: Place) -> None:
        self._folder = folder

    def owners(self) -> list[str]:
        """The folders of owners that have files or batches."""
        return self._folder.folders()

    def create_file(self, owner: Owner, filename: str, data: IO[bytes]) -> FileObject:
        """See `Batches`."""
        folder = self._files(owner.folder)
        folder.make_folder()
        if sum(name.endswith(RECORD) for name in folder.names()) >= MAX_FILES:
            raise ApiError(400, f"There are {MAX_FILES} files already; delete some", code="too_many_files")
        file_id = new_file_id()
        num_bytes = 0
        with (folder / f"{file_id}{DATA}").writing() as stream:
            while piece := data.read(BUFFER_BYTES):
                stream.write(piece)
                num_bytes += len(piece)
        made = FileObject(id=file_id, bytes=num_bytes, created_at=int(time.time()), filename=filename, purpose="batch")
        try:
            (folder / f"{file_id}{RECORD}").write(msgspec.json.encode(made))
        except OSError:  # without it, nobody knows of the data
            (folder / f"{file_id}{DATA}").delete()
            raise
        return made

    def add_output(self, owner: str, file_id: str, filename: str) -> None:
        """A file whose data has been written to `data_of`."""
        num_bytes = self.data_of(owner, file_id).num_bytes
        made = FileObject(
            id=file_id, bytes=num_bytes, created_at=int(time.time()), filename=filename, purpose="batch_output"
        )
        (self._files(owner) / f"{file_id}{RECORD}").write(msgspec.json.encode(made))

    def files(self, owner: Owner) -> list[FileObject]:
        """See `Batches`."""
        found = _records_in(self._files(owner.folder), FileObject)
        return sorted(found, key=lambda file: (file.created_at, file.id), reverse=True)

    def file(self, owner: Owner, file_id: str) -> FileObject:
        """See `Batches`."""
        return msgspec.json.decode(self._record_of(owner, file_id).read(), type=FileObject)

    def content(self, owner: Owner, file_id: str) -> Iterator[bytes]:
        """See `Batches`."""
        return self.data_of(owner.folder, file_id).chunks()

    def delete_file(self, owner: Owner, file_id: str) -> None:
        """See `Batches`. A batch that reads it still has it: what is known of it goes first."""
        record = self._record_of(owner, file_id)
        in_use = [each.id for each in self.batches(owner) if each.status not in ENDED and each.input_file_id == file_id]
        if in_use:
            raise ApiError(409, f"The batch {in_use[0]} reads the file; cancel it first", code="file_in_use")
        try:
            record.delete()
            self.data_of(owner.folder, file_id).delete()
        except FileNotFoundError:  # another request has deleted it meanwhile
            raise _no_file(file_id) from None

    def data_of(self, owner: str, file_id: str) -> Place:
        return self._files(owner) / f"{file_id}{DATA}"

    def create(self, owner: Owner, input_file_id: str, endpoint: str, metadata: dict[str, str] | None) -> Batch:
        """See `Batches`."""
        if self.file(owner, input_file_id).purpose != "batch":
            raise ApiError(400, f"{input_file_id} is an output", code="invalid_value", param="input_file_id")
        folder = self._batches(owner.folder)
        folder.make_folder()
        if sum(name.endswith(RECORD) for name in folder.names()) >= MAX_BATCHES:
            self._forget_one(owner)
        now = int(time.time())
        made = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=metadata,
        )
        self.write(Record(batch=made, owner=owner))
        return made

    def batches(self, owner: Owner) -> list[Batch]:
        """See `Batches`."""
        found = [self._as_told(record) for record in self.records(owner.folder)]
        return sorted(found, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    def batch(self, owner: Owner, batch_id: str) -> Batch:
        """See `Batches`."""
        return self._as_told(self._record(owner, batch_id))

    def cancel(self, owner: Owner, batch_id: str) -> Batch:
        """See `Batches`."""
        record = self._record(owner, batch_id)
        if record.batch.status in ENDED:
            message = f"The batch is {record.batch.status} and cannot be cancelled"
            raise ApiError(409, message, code="batch_ended")
        if self.cancelled_at(record) is None:
            self._cancel_of(record).write(b"")
        return self._as_told(record)

    def cancelled_at(self, record: Record) -> int | None:
        """When its owner wanted it to end, if so."""
        return self._cancel_of(record).written_at

    def records(self, owner: str) -> list[Record]:
        """Of the batches that can be read."""
        return list(_records_in(self._batches(owner), Record))

    def write(self, record: Record) -> None:
        self._place_of(record).write(msgspec.json.encode(record))

    def parts_of(self, record: Record) -> Place:
        return self._folder / record.owner.folder / "parts" / record.batch.id

    def _forget_one(self, owner: Owner) -> None:
        """The batch that was made first among those that have ended; its output stays."""
        ended = [record for record in self.records(owner.folder) if record.batch.status in ENDED]
        if not ended:
            raise ApiError(429, f"{MAX_BATCHES} batches have not ended", code="too_many_batches")
        oldest = min(ended, key=lambda record: record.batch.created_at)
        for place in (self._cancel_of(oldest), self._place_of(oldest)):
            with suppress(FileNotFoundError):  # it was not cancelled, or another gateway does the same
                place.delete()
        with suppress(OSError):  # only a process that was killed behind the batch's end has left them
            self.parts_of(oldest).delete_folder()

    def _as_told(self, record: Record) -> Batch:
        """As its owner sees it: it may have been cancelled a moment ago."""
        batch = record.batch
        if batch.status not in ENDED:
            batch.cancelling_at = self.cancelled_at(record)
            if batch.cancelling_at is not None:
                batch.status = "cancelling"
        return batch

    def _record(self, owner: Owner, batch_id: str) -> Record:
        place = self._batches(owner.folder) / f"{batch_id}{RECORD}"
        if not _ID.fullmatch(batch_id) or not place.is_file:
            raise ApiError(404, f"There is no batch {batch_id[:64]!r}", code="batch_not_found", param="batch_id")
        return msgspec.json.decode(place.read(), type=Record)

    def _record_of(self, owner: Owner, file_id: str) -> Place:
        """Of a file that is there."""
        place = self._files(owner.folder) / f"{file_id}{RECORD}"
        if not _ID.fullmatch(file_id) or not place.is_file:
            raise _no_file(file_id)
        return place

    def _place_of(self, record: Record) -> Place:
        return self._batches(record.owner.folder) / f"{record.batch.id}{RECORD}"

    def _cancel_of(self, record: Record) -> Place:
        return self._batches(record.owner.folder) / f"{record.batch.id}{CANCEL}"

    def _files(self, owner: str) -> Place:
        return self._folder / owner / "files"

    def _batches(self, owner: str) -> Place:
        return self._folder / owner / "batches"


def _records_in(folder: Place, kind: type[Stored]) -> Iterator[Stored]:
    """Without those that are deleted while this looks, and those that cannot be read, which are
    logged: they must not hold up the others.
    """
    for name in folder.names():
        if name.endswith(RECORD):
            try:
                yield msgspec.json.decode((folder / name).read(), type=kind)
            except FileNotFoundError:
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                logger.error("%s is damaged: %s", folder / name, in_a_line(error))


def _no_file(file_id: str) -> ApiError:
    return ApiError(404, f"There is no file {file_id[:64]!r}", code="file_not_found", param="file_id")


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"
