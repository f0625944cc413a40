"""Which engine replicas are likely to have a prompt's beginning in their prefix cache: those that
gateways have sent prompts with the same beginning to, and that have not refused them. What other
gateways have sent, and what their caches have lost since, the replicas tell.

A gateway does not know a prompt's tokens, and need not: where the texts are the same, so are the
tokens. It remembers beginnings by their digests, a piece at a time, and forgets the oldest. A guess
that is wrong costs what computing the prompt costs anyway.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from cluster.replica.delta_channel.told import split
from engine.kv_events.beginnings import ADAPTER_PIECES, NAME_BYTES, PIECE_BYTES
from engine.request import BYTES_PER_TOKEN, ChatPrompt, Request

MAX_BYTES = 512 * PIECE_BYTES  # of a prompt; what follows them is not looked at
MAX_ITEMS = 1024  # of a list in a prompt; what follows them is not looked at
MAX_REMEMBERED = 262_144  # beginnings, in some 60 MB
MAX_REPLICAS = 8  # that are remembered for a beginning


def beginnings_of(request: Request) -> list[bytes]:
    """Digests of the prompt's first piece, of its first two, and so on. Prompts that share cached
    blocks have the same ones: with the same adapter and salt. Before them, those of the adapter.
    """
    adapter = request.adapter.digest if request.adapter is not None else None
    so_far = hashlib.blake2b(repr((adapter, request.cache_salt)).encode(), digest_size=NAME_BYTES)
    text = _bytes_of(request.prompt)
    beginnings = [] if adapter is None else [_digest((adapter, piece)) for piece in range(ADAPTER_PIECES)]
    for start in range(0, len(text) - PIECE_BYTES + 1, PIECE_BYTES):
        so_far.update(text[start : start + PIECE_BYTES])
        beginnings.append(so_far.digest())
    return beginnings


def _digest(key: object) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=NAME_BYTES).digest()


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
    """One gateway's memory of what was sent where. It forgets by halves: what was not used while
    half as much as it may hold was remembered.
    """

    def __init__(self) -> None:
        # By beginning, the numbers of the replicas, the last one first.
        self._new: dict[bytes, tuple[int, ...]] = {}
        self._old: dict[bytes, tuple[int, ...]] = {}
        self._numbers: dict[str, tuple[int, int]] = {}  # by replica, its own and how many times its cache was cleared
        self._replicas: dict[int, str] = {}  # by number
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def known(self, beginnings: Sequence[bytes]) -> dict[str, int]:
        """Pieces of the prompt that each replica has been sent; those with none are not there. Who
        was sent a beginning was sent the shorter ones, even if these are forgotten.
        """
        pieces: dict[int, int] = {}
        before: tuple[int, ...] = ()
        last = 0
        for count, beginning in enumerate(beginnings, 1):
            numbers = self._new.get(beginning) or self._old.get(beginning)
            if numbers is None:
                continue
            if numbers is not before:  # most pieces have the same ones
                pieces.update(dict.fromkeys(before, last))
                before = numbers
            last = count
        pieces.update(dict.fromkeys(before, last))
        return {self._replicas[number]: count for number, count in pieces.items() if number in self._replicas}

    def remember(self, beginnings: Sequence[bytes], replica: str) -> None:
        """A prompt with these beginnings goes to the replica."""
        number = self._numbers[replica][0] if replica in self._numbers else self._renew(replica, 0)
        new, old = self._new, self._old
        before: tuple[int, ...] = ()
        alone: tuple[int, ...] = (number,)
        after = alone
        for beginning in beginnings:
            numbers = new.get(beginning) or old.pop(beginning, alone)
            if numbers != before:  # most pieces have the same ones, and share what becomes of these
                before = numbers
                after = (number, *[other for other in numbers if other != number][: MAX_REPLICAS - 1])
            new[beginning] = after
        if len(new) > MAX_REMEMBERED // 2:
            self._new, self._old = {}, new

    def hear(self, replica: str, num_cleared: int, beginnings: bytes, lost: bytes) -> None:
        """The replica's report: other gateways have sent it prompts with these beginnings, one
        after the other, and its cache has lost those, or all if `num_cleared` has changed.
        """
        if self._numbers.get(replica, (0, 0))[1] != num_cleared:
            self._renew(replica, num_cleared)
        if beginnings:
            self.remember(split(beginnings), replica)
        if lost and replica in self._numbers:
            self._forget(split(lost), self._numbers[replica][0])

    def forget(self, beginnings: Sequence[bytes], replica: str) -> None:
        """The replica has refused a prompt that was sent to it, which alone had these. Another one
        that was sent meanwhile may have them, too: then it costs a wrong guess.
        """
        if replica in self._numbers:
            self._forget(beginnings, self._numbers[replica][0])

    def _renew(self, replica: str, num_cleared: int) -> int:
        """Nothing is known of it any more: what is remembered of its old number means nobody."""
        self._replicas.pop(self._numbers.get(replica, (0, 0))[0], None)
        self._last_number += 1
        self._numbers[replica] = (self._last_number, num_cleared)
        self._replicas[self._last_number] = replica
        return self._last_number

    def _forget(self, beginnings: Sequence[bytes], number: int) -> None:
        for beginning in beginnings:
            for names in (self._new, self._old):
                numbers = names.get(beginning, ())
                if number in numbers:
                    others = tuple(other for other in numbers if other != number)
                    if others:
                        names[beginning] = others
                    else:
                        del names[beginning]
