"""Which engine replicas are likely to have a prompt's beginning in their prefix cache: those that
gateways have sent prompts with the same beginning to. What other gateways have sent, the replicas
tell.

A gateway does not know a prompt's tokens, and need not: where the texts are the same, so are the
tokens. It remembers beginnings by their digests, a piece at a time, and forgets the oldest. A guess
that is wrong, since the replica has forgotten more than the gateway, costs what computing the
prompt costs anyway.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from engine.request import BYTES_PER_TOKEN, ChatPrompt, Request

PIECE_BYTES = 256
MAX_BYTES = 512 * PIECE_BYTES  # of a prompt; what follows them is not looked at
MAX_ITEMS = 1024  # of a list in a prompt; what follows them is not looked at
MAX_REMEMBERED = 262_144  # beginnings, in some 60 MB
MAX_REPLICAS = 8  # that are remembered for a beginning
DIGEST_BYTES = 8
ADAPTER_PIECES = 4  # as many as an adapter counts for, which a replica that had it need not read


def beginnings_of(request: Request) -> list[bytes]:
    """Digests of the prompt's first piece, of its first two, and so on. Prompts that share cached
    blocks have the same ones: with the same adapter and salt. Before them, those of the adapter.
    """
    adapter = request.adapter.digest if request.adapter is not None else None
    so_far = hashlib.blake2b(repr((adapter, request.cache_salt)).encode(), digest_size=DIGEST_BYTES)
    text = _bytes_of(request.prompt)
    beginnings = [] if adapter is None else [_digest((adapter, piece)) for piece in range(ADAPTER_PIECES)]
    for start in range(0, len(text) - PIECE_BYTES + 1, PIECE_BYTES):
        so_far.update(text[start : start + PIECE_BYTES])
        beginnings.append(so_far.digest())
    return beginnings


def _digest(key: object) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=DIGEST_BYTES).digest()


def _bytes_of(prompt: str | Sequence[int] | ChatPrompt) -> bytes:
    """What the prompt begins with, at most MAX_BYTES."""
    match prompt:
        case str():
            return prompt[:MAX_BYTES].encode(errors="surrogatepass")[:MAX_BYTES]
        case ChatPrompt():
            text = b""
            for part in _parts_of(prompt):
                if len(text) >= MAX_BYTES:
                    break
                with suppress(TypeError, ValueError):  # callers by handle may send what JSON does not have
                    text += json.dumps(part, ensure_ascii=False, default=repr).encode(errors="surrogatepass")
            return text[:MAX_BYTES]
        case _:  # ids: four bytes each, as texts have for a token
            return array("I", [token & 0xFFFFFFFF for token in prompt[: MAX_BYTES // BYTES_PER_TOKEN]]).tobytes()


def _parts_of(prompt: ChatPrompt) -> Iterator[object]:
    """In the order in which templates write them."""
    yield _shortened(prompt.variables)
    yield _shortened(prompt.tools, depth=12)
    for message in prompt.messages:
        content = message.get("content")
        if isinstance(content, list):  # one after the other, since the last may never be looked at
            yield _shortened({**message, "content": None})
            yield from map(_shortened, content)
        else:
            yield _shortened(message)


def _shortened(value: Any, depth: int = 4) -> Any:
    """The same, but for what lies far behind the beginning of a long text or list."""
    match value:
        case str():
            return value[:MAX_BYTES]
        case dict() if depth:
            return {key: _shortened(each, depth - 1) for key, each in islice(value.items(), MAX_ITEMS)}
        case list() | tuple() if depth:
            return [_shortened(each, depth - 1) for each in value[:MAX_ITEMS]]
        case dict() | list() | tuple():
            return len(value)
    return value


class Prefixes:
    """One gateway's memory of what was sent where."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # by beginning; the last used at the end

    def __len__(self) -> int:
        return len(self._replicas)

    def known(self, beginnings: Sequence[bytes]) -> dict[str, int]:
        """Pieces of the prompt that each replica has been sent; those with none are not there."""
        pieces: dict[str, int] = {}
        for index, beginning in enumerate(beginnings):
            replicas = self._replicas.get(beginning)
            if replicas is None:
                break
            for replica in replicas:
                pieces[replica] = index + 1
        return pieces

    def remember(self, beginnings: Sequence[bytes], replica: str) -> None:
        """A prompt with these beginnings goes to the replica."""
        for beginning in reversed(beginnings):  # so that shorter ones are forgotten last
            others = [other for other in self._replicas.get(beginning, ()) if other != replica]
            self._replicas[beginning] = (replica, *others[: MAX_REPLICAS - 1])
            self._replicas.move_to_end(beginning)
        while len(self._replicas) > MAX_REMEMBERED:
            self._replicas.popitem(last=False)

    def hear(self, beginnings: bytes, replica: str) -> None:
        """Other gateways have sent prompts with these, one after the other, to the replica."""
        ends = range(DIGEST_BYTES, len(beginnings) + 1, DIGEST_BYTES)
        self.remember([beginnings[end - DIGEST_BYTES : end] for end in ends], replica)
