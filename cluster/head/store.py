"""Ray's own store on the head node, which outlives each engine replica, gateway and deploy: what
they write down there of an application.
"""

import contextlib
import hashlib
from collections.abc import Iterator

from ray.exceptions import RayError
from ray.experimental import internal_kv

from engine.errors import SquadronError

NAMESPACE = b"squadron"
KEPT = 1000  # keys of a numbered record: more than are written while one of its writers is slow


class NoRecord(SquadronError):
    """Ray's head does not answer."""


def read(key: bytes) -> bytes | None:
    """Blocks, as all of these do. Raises NoRecord."""
    with _answering():
        value: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return value


def write(key: bytes, value: bytes) -> None:
    """In place of what is there. Raises NoRecord."""
    with _answering():
        internal_kv._internal_kv_put(key, value, True, namespace=NAMESPACE)


def claim(key: bytes, value: bytes = b"") -> bool:
    """Write it unless anything is there; whether nothing was. Raises NoRecord."""
    with _answering():
        exists: bool = internal_kv._internal_kv_put(key, value, False, namespace=NAMESPACE)
    return not exists


def delete(key: bytes) -> None:
    """Of no effect if it is not there. Raises NoRecord."""
    with _answering():
        internal_kv._internal_kv_del(key, namespace=NAMESPACE)


def numbers(prefix: bytes) -> list[int]:
    """Of the keys that are the prefix and a number. Raises NoRecord."""
    return [int(rest) for rest in rests(prefix)]


def rests(prefix: bytes) -> list[bytes]:
    """Of the keys that begin so, what follows. Raises NoRecord."""
    with _answering():
        keys = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    return [key.removeprefix(prefix) for key in keys]


def delete_all(prefix: bytes) -> None:
    """The keys that begin so. Raises NoRecord."""
    with _answering():
        internal_kv._internal_kv_del(prefix, del_by_prefix=True, namespace=NAMESPACE)


def digest(text: str) -> str:
    """For a key, in place of what may be long, or secret."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (RayError, OSError) as error:
        raise NoRecord(f"Ray's head, whose store is asked, does not answer now: {error}") from None
