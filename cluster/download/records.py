"""Records of complete downloads on this node: a small file for each model and revision, so that a
later start needs no network.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cluster.download.store import RemoteFile


class Records:
    """Below `download_dir`, or in the user's cache folder. Names are sources, with revision."""

    def __init__(self, download_dir: str | None) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        base = Path(download_dir).expanduser().absolute() if download_dir else cache
        self.root = base / (".squadron" if download_dir else "squadron")

    def folder(self, source: str, has_weights: bool) -> Path | None:
        """Where all of its files are, of the sizes that they had; None if they are not."""
        try:
            record = json.loads(self._path(source, has_weights).read_text(encoding="utf-8"))
            folder = Path(record["folder"])
            are_there = all((folder / name).stat().st_size == size for name, size in record["files"].items())
        except (OSError, ValueError, KeyError):
            return None
        return folder if are_there else None

    def enter(self, source: str, has_weights: bool, folder: Path, files: Sequence[RemoteFile]) -> None:
        path = self._path(source, has_weights)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"folder": str(folder), "files": {file.name: file.size for file in files}}
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        os.replace(partial, path)

    def lock(self, source: str) -> Path:
        return self.root / "locks" / slug(source)

    def outline(self, source: str, has_weights: bool) -> Path:
        """Where the model is kept without its numbers."""
        return self.root / "outlines" / (slug(source) + ("" if has_weights else ".bare"))

    def files(self, source: str) -> Path:
        """Where the files of an object store are kept."""
        return self.root / "models" / slug(source)

    def _path(self, source: str, has_weights: bool) -> Path:
        return self.root / "fetched" / f"{slug(source)}{'' if has_weights else '.bare'}.json"


def slug(source: str) -> str:
    """A file name."""
    return re.sub(r"[^\w.@-]+", "--", source)
