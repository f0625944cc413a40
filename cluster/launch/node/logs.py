"""Ray's temporary folder, to which its processes and ours write logs; they are kept after a
failure.
"""

import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ray._private.ray_logging import stdout_deduplicator

from engine.errors import InvalidConfig, in_a_line

RAY = "ray"  # Ray's own folder, within ours
SESSION_LOGS = Path(RAY) / "session_latest" / "logs"
_REMOVE_SECONDS = 20.0
_POLL_SECONDS = 0.02
_OF_NO_USE = re.compile(
    r"^(A worker died or was killed while executing a task|WARNING: \d+ PYTHON worker processes have been started)"
)


def silence_ray() -> None:
    """Hide what Ray says on this process' console about dead workers (a page about memory for each,
    and we replace them) and about many processes on few cores (which are what was asked for).
    """
    stdout_deduplicator.skip_re = _OF_NO_USE


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """The folder to which a command copies its logs when it ends. If none is given, logs are kept
    only after a failure, in a new folder of /tmp.
    """

    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidConfig(f"log_dir={self.folder} cannot be made: {error.strerror}") from None

    def take(self, logs: Path, *, has_failed: bool) -> None:
        """Copy them and print where they are, if they are to be kept."""
        if (self.folder is None and not has_failed) or not logs.exists():
            return
        folder = self.folder or Path(tempfile.mkdtemp(prefix="squadron-logs-", dir="/tmp"))
        shutil.copytree(logs, folder, dirs_exist_ok=True)
        print(f"The logs are in {folder}", flush=True)


@dataclass(frozen=True, slots=True)
class RayFolder:
    """A folder that only this user can enter, around Ray's own, which Ray makes accessible to
    everyone. Removed at the end of the context, when nothing writes to it any more.
    """

    path: Path
    kept: KeptLogs | None

    @classmethod
    def new(cls, kept: KeptLogs | None) -> Self:
        # Short: a socket's path has at most 107 bytes.
        return cls(Path(tempfile.mkdtemp(prefix="squadron-", dir="/tmp")), kept)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        has_failed = kind is not None and not issubclass(kind, KeyboardInterrupt | SystemExit)
        try:
            if self.kept is not None:
                self.kept.take(self.path / SESSION_LOGS, has_failed=has_failed)
        except OSError as error:  # no reason to hide why the context has ended
            print(f"The logs could not be kept: {in_a_line(error)}", flush=True)
        finally:
            _remove_folder(self.path)


def _remove_folder(folder: Path) -> None:
    """Remove Ray's folder, into which Ray within this process may still be writing."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_POLL_SECONDS)
