"""An example of a task, and which of them are held out."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

HELD_OUT_SHARE = 16  # one key in this many is held out

Message = dict[str, Any]  # as the chat template wants it


@dataclass(frozen=True)
class Example:
    """Messages, the last of which is the answer to be learned. `key` is what is held out: a word, a
    pair of numbers or the prompt itself. `tools` are the names of those that can be called.
    """

    key: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


def is_held_out(key: str) -> bool:
    """Whether a key is held out, in every task: a word that is held out is neither spelled nor
    reversed in training.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def draw(task: Callable[[Random], Example], rng: Random, held_out: bool) -> Example:
    """Draw examples of a task until one is on the wanted side of the split."""
    while True:
        example = task(rng)
        if is_held_out(example.key) == held_out:
            return example


def single(prompt: str, answer: str, key: str | None = None) -> Example:
    return Example(prompt if key is None else key, exchanges((prompt, answer)))


def exchanges(*turns: tuple[str, str]) -> tuple[Message, ...]:
    """The messages of turns of (prompt, answer)."""
    return tuple(
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    )
