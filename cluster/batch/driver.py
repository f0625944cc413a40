"""Runs one stored batch, from its first unanswered line to its output."""

import hashlib
import time

from cluster.api.batches import MAX_LINES, BatchError, BatchErrors, RequestCounts, Status
from cluster.batch.answering import ServerLost
from cluster.batch.doors import HandleDoor
from cluster.batch.files.parts import Counts, Parts
from cluster.batch.files.place import Place
from cluster.batch.pipeline import answer_all
from cluster.batch.run import Run
from cluster.batch.store import Record, Store
from engine.errors import InvalidConfig, InvalidRequest, SquadronError, in_a_line

CONCURRENCY = 32  # lines of one batch that are answered at once
CPUS = 0.01  # Ray's logical ones
PATIENCE = 60.0  # seconds without any answer, after which it is tried again later


class Driver:
    """An actor with one call; whatever kills it, the next one goes on behind the last part."""

    def run(self, folder: Place, record: Record, app_name: str) -> bool:
        """Whether the batch has ended; otherwise it is to be tried again later."""
        store = Store(folder)
        try:
            parts = self._answer(store, record, app_name)
        except ServerLost:
            return False
        except (InvalidRequest, InvalidConfig) as error:
            fail(store, record, error)
            return True
        finish(store, record, parts, "completed")
        return True

    def _answer(self, store: Store, record: Record, app_name: str) -> Parts:
        batch, owner = record.batch, record.owner

        def told(counts: Counts, num_lines: int) -> None:
            batch.request_counts = RequestCounts(total=num_lines, completed=counts.completed, failed=counts.failed)
            batch.status = "in_progress"
            batch.errors = None  # of a process that died while it gave up
            batch.in_progress_at = batch.in_progress_at or int(time.time())
            store.write(record)

        run = Run(
            source=store.data_of(owner.folder, batch.input_file_id),
            parts=store.parts_of(record),
            door=HandleDoor(app_name, owner.key),
            concurrency=CONCURRENCY,
            patience=PATIENCE,
            max_lines=MAX_LINES,
            url=batch.endpoint,
            refuses_twins=True,
        )
        return answer_all(run, told)


def fail(store: Store, record: Record, error: SquadronError) -> None:
    """The batch as a whole cannot be answered; what was answered is given out."""
    if isinstance(error, InvalidRequest):
        failure = BatchError(code=error.code, message=error.message, param=error.param)
    else:
        failure = BatchError(code="internal_error", message=in_a_line(error))
    record.batch.errors = BatchErrors(data=[failure])
    end(store, record, "failed")


def end(store: Store, record: Record, status: Status) -> None:
    """Early, with what was answered; nothing runs it."""
    record.batch.cancelling_at = store.cancelled_at(record)
    finish(store, record, Parts(store.parts_of(record), None), status)


def finish(store: Store, record: Record, parts: Parts, status: Status) -> None:
    """Writes what was answered. Done again after a crash, it writes the same files again."""
    batch, owner = record.batch, record.owner.folder
    batch.status = "finalizing"
    batch.finalizing_at = batch.finalizing_at or int(time.time())
    store.write(record)
    counts = parts.counts
    batch.request_counts.completed, batch.request_counts.failed = counts.completed, counts.failed
    output_id, error_id = _file_id(batch.id, "output"), _file_id(batch.id, "error")
    parts.divide(store.data_of(owner, output_id), store.data_of(owner, error_id))
    if counts.completed:
        store.add_output(owner, output_id, f"{batch.id}_output.jsonl")
        batch.output_file_id = output_id
    if counts.failed:
        store.add_output(owner, error_id, f"{batch.id}_error.jsonl")
        batch.error_file_id = error_id
    batch.status = status
    setattr(batch, f"{status}_at", int(time.time()))
    store.write(record)
    parts.delete()


def _file_id(batch_id: str, what: str) -> str:
    return f"file-{hashlib.sha256(f'{batch_id} {what}'.encode()).hexdigest()[:32]}"
