"""Records of what was fetched to this node: a small file for each model and revision, and another
one for a model of which only some weight files are here, so that a later start needs no network.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cluster.download.store import RemoteFile

WEIGHTS = ".safetensors"
MAX_NAME_BYTES = 160  # of a slug: file names have 255, with what is put behind it


class Records:
    """Below `download_dir`, or in the user's cache folder. Names are sources, with revision."""

    def __init__(self, download_dir: str | None) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        base = Path(download_dir).expanduser().absolute() if download_dir else cache
        self.root = base / (".squadron" if download_dir else "squadron")

    def folder(self, source: str, has_weights: bool) -> Path | None:
        """Where all of its files are, of the sizes that they had; None if they are not."""
        folder, sizes = _read(self._path(source, has_weights))
        return folder if folder is not None and _there(folder, sizes) == sizes else None

    def share(self, source: str) -> tuple[Path, dict[str, int]] | None:
        """Where it is with some of its weight files, and which files are there, by name with the
        sizes that they had; None if it is not.
        """
        folder, sizes = _read(self._path(source, has_weights=True, suffix=".share"))
        there = {} if folder is None else _there(folder, sizes)
        if folder is None or any(not name.endswith(WEIGHTS) for name in sizes.keys() - there.keys()):
            return None
        return folder, there

    def enter(
        self,
        source: str,
        has_weights: bool,
        folder: Path,
        files: Sequence[RemoteFile],
        others: Sequence[RemoteFile] = (),
    ) -> None:
        """`files` are there. `others`: of the model's, which may be there from before, or are not
        needed here.
        """
        sizes = {file.name: file.size for file in files}
        if others:
            known = self.share(source)
            if known is not None and known[0] == folder:
                sizes |= known[1]
            _write(self._path(source, has_weights, ".share"), folder, sizes)
        if all(file.name in sizes for file in others):
            _write(self._path(source, has_weights), folder, sizes)

    def last(self, name: str) -> str | None:
        """The revision of the model of this name that was fetched last; None if none was."""
        try:
            return self._last(name).read_text(encoding="utf-8") or None
        except OSError:
            return None

    def note_last(self, source: str) -> None:
        name, _, revision = source.rpartition("@")
        _replace(self._last(name), revision)

    @property
    def claims(self) -> Path:
        """Where processes note what they fetch."""
        return self.root / "claims"

    def lock(self, source: str) -> Path:
        return self.root / "locks" / slug(source)

    def outline(self, source: str, has_weights: bool) -> Path:
        """Where the model is kept without its numbers."""
        return self.root / "outlines" / (slug(source) + ("" if has_weights else ".bare"))

    def files(self, source: str) -> Path:
        """Where the files of an object store are kept."""
        return self.root / "models" / slug(source)

    def _last(self, name: str) -> Path:
        return self.root / "last" / slug(name)

    def _path(self, source: str, has_weights: bool, suffix: str = "") -> Path:
        return self.root / "fetched" / f"{slug(source)}{'' if has_weights else '.bare'}{suffix}.json"


def slug(source: str) -> str:
    """A file name, of no other source."""
    name = re.sub(r"[^\w.@-]+", "--", source)
    is_plain = name.replace("--", "/") == source.replace("://", "/")
    if is_plain and len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return f"{name[: MAX_NAME_BYTES // 8]}-{hashlib.sha256(source.encode()).hexdigest()[:32]}"


def _read(path: Path) -> tuple[Path | None, dict[str, int]]:
    """A record: the folder, and sizes by name. None, and nothing, if there is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Path(record["folder"]), dict(record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}


def _write(path: Path, folder: Path, sizes: dict[str, int]) -> None:
    _replace(path, json.dumps({"folder": str(folder), "files": sizes}, indent=1))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _there(folder: Path, sizes: dict[str, int]) -> dict[str, int]:
    """Those whose files are in the folder."""
    return {
        name: size for name, size in sizes.items() if (path := folder / name).exists() and path.stat().st_size == size
    }
