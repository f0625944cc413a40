"""The interface of stores that models are fetched from, and their failures."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`etag` names the bytes: other bytes have another one. `digest` is what they can be verified
    by, `sha256:`, `git-sha1:` or `md5:` and hexadecimal digits; None if the store tells none.
    """

    name: str  # below the model's folder
    size: int
    etag: str
    digest: str | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What is on this node now: `files` in `folder`, and `others` of the model's are not needed. If
    there are no `files`, the folder was here before.
    """

    folder: Path
    files: tuple[RemoteFile, ...] = ()
    others: tuple[RemoteFile, ...] = ()


class Unreachable(InvalidConfig):
    """The store does not answer, or no network may be used: the reason. `otherwise`: what to say
    besides if the model is not on this node either; `asked`: see `Interrupted`.
    """

    def __init__(self, reason: str, otherwise: str = "", asked: float | None = None) -> None:
        super().__init__(reason + otherwise)
        self.reason = reason
        self.asked = asked


class Interrupted(Exception):
    """A transfer broke off; it may be continued. `asked`: after so many seconds, if the store says
    so.
    """

    def __init__(self, reason: str, asked: float | None = None) -> None:
        super().__init__(reason)
        self.asked = asked


class Store(Protocol):
    """One model at one revision."""

    title: str  # for people

    def files(self) -> tuple[RemoteFile, ...]:
        """Raises InvalidConfig (Unreachable)."""

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        """The file's bytes from `start` to `stop`. Raises Interrupted, InvalidConfig."""

    def tells_digest(self, file: RemoteFile) -> bool:
        """Whether its digest is one of its bytes, asked where these have another one. Raises
        InvalidConfig.
        """

    def place(self, file: RemoteFile) -> Path:
        """Where its bytes are kept on this node."""

    def folder(self, files: tuple[RemoteFile, ...]) -> Path:
        """The folder of these files, which are in their places."""

    def cached(self) -> Path | None:
        """The folder of this model on this node, fetched by whatever program, perhaps in part."""
