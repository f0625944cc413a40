"""Blocks of a cache as files, each found by its content's hash, and checked by a digest of its
bytes: whatever is damaged, cut short or of another block is as if it were not there.

A file appears as a whole or not at all, so several engines may share the folder, and be killed at
any moment.
"""

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from engine.errors import InvalidConfig, in_a_line
from engine.offload.file_format import HEADER_BYTES, file_name, is_block, is_unfinished, sealed, unsealed
from engine.offload.peers.peers import Peers
from engine.offload.shared_folder import is_shared

logger = logging.getLogger("squadron.offload")

_TEMPORARY = ".tmp"
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # by scheme: what brings its package
_counter = itertools.count()


class StoredFile(NamedTuple):
    """`name` is relative to the folder."""

    name: str
    num_bytes: int
    used: float  # when it was last read or written, as far as the filesystem tells

    @property
    def is_temporary(self) -> bool:
        """Whether it was being written when its writer was killed, or still is."""
        return self.name.endswith(_TEMPORARY)


class Folder:
    """A folder on this machine, or of an object store."""

    def __init__(self, uri: str) -> None:
        """Made if it is not there, for this user only, unless it is in shared memory: see
        `SharedFolder`. Raises InvalidConfig.
        """
        self.uri = uri
        self._fs, path = _open(uri)
        self._path = str(path).rstrip("/")
        self.is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))
        if self.is_local and not is_shared(uri):  # that one its engine has made, on the driver's node
            try:
                Path(self._path).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidConfig(f"kv_offloading_path={uri}: {error.strerror or error}") from None
            if not os.access(self._path, os.R_OK | os.W_OK | os.X_OK):
                raise InvalidConfig(f"kv_offloading_path={uri} may not be read and written by this user")

    def write(self, name: str, data: bytes) -> None:
        """Raises OSError and the filesystem's own errors."""
        if not self.is_local:
            self._fs.pipe_file(f"{self._path}/{name}", data)
            return
        path = Path(self._path, name)
        if is_shared(self.uri) and not Path(self._path).is_dir():
            raise FileNotFoundError(f"{self._path} is gone: its last engine has ended")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Threads, processes and machines each have a name of their own.
        temporary = path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}.{next(_counter)}{_TEMPORARY}")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes | None:
        """None if it is not there; it counts as used now, as does a folder in shared memory."""
        try:
            if not self.is_local:
                return bytes(self._fs.cat_file(f"{self._path}/{name}"))
            if is_shared(self.uri):
                os.utime(self._path)
            path = Path(self._path, name)
            data = path.read_bytes()
            os.utime(path)
            return data
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Another engine may have done so."""
        try:
            self._fs.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return

    def files(self) -> Iterator[StoredFile]:
        """Those of blocks, of any layout and rank: whatever else is there belongs to somebody
        else.
        """
        self._fs.invalidate_cache()
        for path, entry in self._fs.find(self._path, detail=True).items():
            name = str(path)[len(self._path) + 1 :]
            if is_block(name) or is_unfinished(name):
                yield StoredFile(name, int(entry.get("size") or 0), _time(entry))


class BlockFiles:
    """One rank's files in a folder, and, of those that are not there, what peers have. From any
    thread.

    A place where a peer has blocks is the address where it serves them, followed, if it has a
    folder of its own for them, by that folder's path: who is on its node reads there.
    """

    def __init__(
        self,
        folder: Folder | None,
        layout: str,
        rank: int,
        secret: str | None = None,
        left: Folder | None = None,
        *,
        uses_nixl: bool = False,
    ) -> None:
        """`folder`: None: there is none to read. `layout`: see `layout_name`. `secret`: that peers
        know, too; None: there are none. `left`: that is written to instead of `folder`.
        `uses_nixl`: of peers that can.
        """
        self._folder, self._layout, self._rank = folder, layout, rank
        self._written = left or folder
        self._peers = None if secret is None else Peers(secret, uses_nixl=uses_nixl)
        self._lock = threading.Lock()
        self._has_told = False

    def write(self, content: bytes, data: bytes) -> None:
        """Whole, or not at all; a failure is logged once."""
        name = file_name(self._layout, content, self._rank)
        try:
            if self._written is not None:
                self._written.write(name, sealed(name, data))
        except Exception as error:  # each filesystem has its own
            self._tell(f"{name} cannot be written: {in_a_line(error)}")

    def read(self, content: bytes, num_bytes: int, place: str = "") -> bytes | None:
        """So many bytes, exactly those that were written; else None, and what is damaged is
        removed. `place`: of the engine that has it if the folder has not; empty: nobody.
        """
        name = file_name(self._layout, content, self._rank)
        if self._folder is not None and (data := self._read_in(self._folder, name, num_bytes)) is not None:
            return data
        address, slash, path = place.partition("/")
        left = slash + path
        if is_shared(left) and Path(left).is_dir():
            return self._read_in(Folder(left), name, num_bytes)
        return self._read_from(address, name, num_bytes) if address else None

    def _read_in(self, folder: Folder, name: str, num_bytes: int) -> bytes | None:
        try:
            found = folder.read(name)
            if found is not None:
                if (data := unsealed(name, found, num_bytes)) is not None:
                    return data
                folder.remove(name)
                self._tell(f"{name}, {len(found)} bytes, is damaged and was removed; its tokens are computed again")
        except Exception as error:  # each filesystem has its own
            self._tell(f"{name} cannot be read: {in_a_line(error)}")
        return None

    def _read_from(self, address: str, name: str, num_bytes: int) -> bytes | None:
        if self._peers is None:
            return None
        try:
            found = self._peers.fetch(address, name, HEADER_BYTES + num_bytes)
        except Exception as error:  # also of an address that is none, and libraries' own
            self._tell(f"{name} cannot be fetched from {address}: {in_a_line(error)}")
            return None
        data = None if found is None else unsealed(name, found, num_bytes)
        if found is not None and data is None:
            self._tell(f"{name}, {len(found)} bytes, is damaged at {address}; its tokens are computed again")
        return data

    def _tell(self, text: str) -> None:
        with self._lock:
            if not self._has_told:
                where = "blocks of other engines" if self._folder is None else self._folder.uri
                logger.warning("%s: %s (what follows of this kind is not logged)", where, text)
            self._has_told = True


def layout_name(fingerprint: str, tp_size: int, pp_size: int) -> str:
    """What bytes of a file mean: the arithmetic that made them, and how ranks share a block."""
    return f"{fingerprint}-tp{tp_size}pp{pp_size}"


def _open(uri: str) -> tuple[Any, str]:
    scheme, has_scheme, _ = uri.partition("://")
    if not has_scheme or scheme == "file" or "/" in scheme:
        # A path, in which anything else, such as `::`, is a part of a name.
        here = fsspec.filesystem("file")
        return here, here._strip_protocol(uri)
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(uri)
        return found
    except ImportError as error:
        extra = f": pip install 'squadron-serve[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else f" ({error})"
        raise InvalidConfig(f"kv_offloading_path={uri} needs a package that is not installed{extra}") from None
    except ValueError as error:
        raise InvalidConfig(f"kv_offloading_path={uri}: {error}; a path, file://, s3:// and gs:// are known") from None


def _time(entry: dict[str, Any]) -> float:
    when = entry.get("mtime") or entry.get("LastModified") or entry.get("updated") or 0.0
    if hasattr(when, "timestamp"):
        return float(when.timestamp())
    return float(when) if isinstance(when, int | float) else 0.0
