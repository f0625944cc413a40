"""Room for what is fetched to this node. What downloads still take of a filesystem is summed before
one begins: those of the same process, and those of others that note theirs in the same folder.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from cluster.memory import human
from engine.errors import InvalidConfig

PARTIAL = ".incomplete"
LOCK = "lock"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ELSEWHERE = "download_dir names another folder"


@dataclass(frozen=True, slots=True)
class Want:
    """Of one model: the sizes of its files by the places where they will be."""

    title: str
    sizes: dict[Path, int]

    @property
    def folder(self) -> Path:
        """Of one of them; all are on one disk."""
        return next(iter(self.sizes)).parent

    def left(self) -> dict[Path, int]:
        """Bytes still to come, of the files that are not there."""
        return {
            place: max(size - size_of(partial_of(place)), 0)
            for place, size in self.sizes.items()
            if not is_whole(place, size)
        }


def partial_of(place: Path) -> Path:
    """Where a file grows until it is whole."""
    return place.with_name(place.name + PARTIAL)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def is_whole(place: Path, size: int) -> bool:
    return place.is_file() and place.stat().st_size == size


@contextlib.contextmanager
def reserved(wants: Sequence[Want], claims: Path) -> Iterator[None]:
    """Room for them, as long as the context lasts. `claims`: the folder in which processes note
    what they fetch. Raises InvalidConfig if the disk has too little for these and for all that is
    noted.
    """
    wants = [want for want in wants if want.left()]
    with contextlib.ExitStack() as held:
        if wants:
            claims.mkdir(parents=True, exist_ok=True)
            with (claims / LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _check([*wants, *_noted(claims)])
                for want in wants:
                    held.enter_context(_note(want, claims))
        yield


def _check(wants: Sequence[Want]) -> None:
    for on_disk in _by_disk(wants):
        of_title, seen = dict[str, int](), set[Path]()
        for want in on_disk:
            new = {place: left for place, left in want.left().items() if place not in seen}
            seen |= new.keys()
            of_title[want.title] = of_title.get(want.title, 0) + sum(new.values())
        free = shutil.disk_usage(on_disk[0].folder).free
        if sum(of_title.values()) > free:
            raise InvalidConfig(_no_room(of_title, os.path.commonpath([want.folder for want in on_disk]), human(free)))


def _by_disk(wants: Sequence[Want]) -> Iterable[list[Want]]:
    found: dict[int, list[Want]] = {}
    for want in wants:
        want.folder.mkdir(parents=True, exist_ok=True)
        found.setdefault(want.folder.stat().st_dev, []).append(want)
    return found.values()


def _no_room(of_title: dict[str, int], folder: str, free: str) -> str:
    needed = sum(of_title.values())
    takers = {title: left for title, left in of_title.items() if left}
    if len(takers) == 1:
        return f"{next(iter(takers))} takes {human(needed)} more in {folder}, and {free} are free there; {ELSEWHERE}"
    each = ", ".join(f"{title} {human(left)}" for title, left in takers.items())
    return f"Models take {human(needed)} more in {folder} ({each}), and {free} are free there; {ELSEWHERE}"


@contextlib.contextmanager
def _note(want: Want, claims: Path) -> Iterator[None]:
    """Holds the file's lock, by which others know that this process lives."""
    path = claims / f"{uuid4().hex}.json"
    with path.open("x", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump({"title": want.title, "sizes": {str(place): size for place, size in want.sizes.items()}}, file)
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


def _noted(claims: Path) -> list[Want]:
    """By processes that live; what others have left is removed. Under the folder's lock."""
    return [want for path in sorted(claims.glob("*.json")) if (want := _read(path)) is not None]


def _read(path: Path) -> Want | None:
    try:
        with path.open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                noted = json.load(file)
                return Want(noted["title"], {Path(place): size for place, size in noted["sizes"].items()})
            path.unlink()
            return None
    except (OSError, ValueError):  # its process has just ended
        return None


@contextlib.contextmanager
def told_if_full(want: Want, folder: Path) -> Iterator[None]:
    """A disk that is full, or a quota that is used up, as InvalidConfig. `folder`: where it is
    written to.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL and not os.path.exists(folder):
            raise InvalidConfig(
                f"{want.title}: {folder} cannot be made: {error.strerror or error}; {ELSEWHERE}"
            ) from None
        if error.errno not in FULL:
            raise
        free = human(shutil.disk_usage(_existing(folder)).free)
        left = f"it takes {human(sum(want.left().values()))} more, and " if want.left() else ""
        raise InvalidConfig(
            f"{want.title}: {os.strerror(error.errno)} in {folder}: {left}{free} are free there; what has come is "
            f"kept, and the next start goes on from there; {ELSEWHERE}"
        ) from None


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
