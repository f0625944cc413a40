"""Files and batches, as OpenAI's client knows them, and how many there may be."""

from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct, field

MAX_FILE_BYTES = 200 << 20
MAX_FILES = 1000  # of one API key
MAX_BATCHES = 1000
MAX_LINES = 50_000  # of a batch
COMPLETION_WINDOW = "24h"
WINDOW_SECONDS = 24 * 3600

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")


class FileObject(Struct, kw_only=True):
    """A file, as OpenAI's client knows it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class FileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class RequestCounts(Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(Struct, kw_only=True):
    """Why a batch as a whole failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError] = field(default_factory=list)


class Batch(Struct, kw_only=True):
    """A batch, as OpenAI's client knows it. Times in seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str = COMPLETION_WINDOW
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    usage: None = None
    metadata: dict[str, str] | None = None


class Page(Struct, kw_only=True):
    """Of a list, newest first."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose files: those of one API key, or of all clients where there are no keys."""

    folder: str
    key: str | None  # its name
