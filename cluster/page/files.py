"""The page's files, as they are sent: no step makes them from others."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str  # with its quotes


def read_files() -> dict[str, PageFile]:
    """By their paths below `FOLDER`."""
    paths = (path for path in sorted(FOLDER.rglob("*")) if path.suffix in _MEDIA_TYPES)
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(body, _MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
