"""A folder in shared memory for blocks on their way from one engine to another: of one application
on one machine, and gone with its last engine.

Every engine holds a shared lock on a file in it, which the kernel gives back however the engine
ends. Who can lock the file alone is the last one, or finds what engines left that were killed.
"""

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from engine.errors import InvalidConfig

logger = logging.getLogger("squadron.offload")

SHARED_MEMORY = Path("/dev/shm")
LOCK = "lock"
BEGINNING_SECONDS = 60.0  # after which a folder without a lock is nobody's
_KIND = "squadron-blocks-"


def shared_folder(secret: str) -> str:
    """Its path; `secret`: the application's own, so that nobody else can make it before."""
    return str(SHARED_MEMORY / f"{_prefix()}{hashlib.sha256(secret.encode()).hexdigest()[:24]}")


def new_folder() -> str:
    """The path of one that no other engine knows yet."""
    return shared_folder(secrets.token_hex(16))


def peer_secret(secret: str) -> str:
    """By which engines of other nodes get what is in it; `secret`: as above."""
    return hashlib.sha256(f"peers of {secret}".encode()).hexdigest()


def is_shared(uri: str) -> bool:
    """Whether `shared_folder` made the path."""
    return uri.startswith(f"{SHARED_MEMORY}/{_KIND}")


class SharedFolder:
    """One engine's hold on it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def hold(cls, uri: str) -> Self:
        """Make it if it is not there, and remove those of this user that nobody holds. Raises
        InvalidConfig.
        """
        path = Path(uri)
        remove_abandoned(path)
        lock = None
        try:
            while lock is None:
                lock = _locked(path)
        except OSError as error:
            raise InvalidConfig(f"no shared memory at {path}: {error.strerror or error}") from None
        return cls(path, lock)

    @property
    def last_read(self) -> float:
        """When another process has read of it, or nobody since it was made; in time.time()."""
        return os.stat(self.path).st_mtime

    def most_bytes(self, wanted: int) -> int:
        """That blocks may take here: half of what there is, at most."""
        room = os.statvfs(self.path)
        return min(wanted, room.f_blocks * room.f_frsize // 2)

    def leave(self) -> None:
        """Remove it, if no other engine holds it. Idempotent."""
        if self._lock is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(
                self._lock, self.path / LOCK
            ):  # not if somebody has removed it, and another engine made it anew
                shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass  # another engine's, from now on
        finally:
            os.close(self._lock)
            self._lock = None


def _prefix() -> str:
    return f"{_KIND}{os.getuid()}-"


def _locked(path: Path) -> int | None:
    """The lock, shared; None if the folder's last engine has just removed it."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            raise InvalidConfig(f"{path} is another user's")
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        if SHARED_MEMORY.is_dir():
            return None
        raise
    fcntl.flock(lock, fcntl.LOCK_SH)
    if _is_same(lock, path / LOCK):
        return lock
    os.close(lock)
    return None


def remove_abandoned(own: Path | None = None) -> None:
    """Folders of this user that nobody holds, but for `own`."""
    for path in SHARED_MEMORY.glob(f"{_prefix()}*"):
        if path == own or path.is_symlink():
            continue
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            with suppress(OSError):  # it is being made, or removed; or one who was killed had just begun
                if time.time() - path.stat().st_mtime > BEGINNING_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(lock, path / LOCK):
                logger.info("%s is removed: its engines were killed", path)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)


def _is_same(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False
