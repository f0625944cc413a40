"""Other names of models. One may stand for several models, each of which gets its share of the
conversations: so a new model is tried on some of them.

A conversation stays with its model. Which one it gets is a hash of what all of its requests have in
common, so every gateway chooses the same one, also for a stream that is resumed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from engine.errors import InvalidConfig

_SENDERS = ("prompt_cache_key", "safety_identifier", "user")  # fields; the first that is given decides
_PROMPTS = ("prompt", "input", "query", "text_1")  # fields of requests without messages
MAX_BYTES = 1 << 16  # of a prompt's beginning
Target = Annotated[  # of an alias: a model, or several with their weights
    Annotated[str, Tag("model")] | Annotated[dict[str, float], Tag("weights")],
    Discriminator(lambda given: "weights" if isinstance(given, dict) else "model"),
]


@dataclass(frozen=True, slots=True)
class Alias:
    shares: tuple[tuple[str, float], ...]  # models, and the weight of each

    def choose(self, fields: Mapping[str, Any]) -> str:
        """The model for a request with these fields."""
        if len(self.shares) == 1:
            return self.shares[0][0]
        digest = hashlib.blake2b(_conversation(fields), digest_size=8).digest()
        point = int.from_bytes(digest, "big") / 2**64 * sum(weight for _, weight in self.shares)
        for name, weight in self.shares:
            if point < weight:
                return name
            point -= weight
        return self.shares[-1][0]


def read_aliases(given: Mapping[str, str | Mapping[str, float]], models: Sequence[str]) -> dict[str, Alias]:
    """From NAME: MODEL, or NAME: {MODEL: weight, ...}. Raises InvalidConfig."""
    aliases = {}
    for name, target in given.items():
        shares = {target: 1.0} if isinstance(target, str) else dict(target)
        _check(name, shares, models)
        aliases[name] = Alias(tuple((model, weight) for model, weight in shares.items() if weight > 0))
    return aliases


def _check(name: str, shares: Mapping[str, float], models: Sequence[str]) -> None:
    if not name:
        raise InvalidConfig("aliases: one has no name")
    if name in models:
        raise InvalidConfig(f"aliases: {name!r} is a model's own name")
    for model, weight in shares.items():
        if model not in models:
            raise InvalidConfig(f"aliases: {name!r} stands for {model!r}, and there are {', '.join(map(repr, models))}")
        if not 0 <= weight < float("inf"):
            raise InvalidConfig(f"aliases: {name!r} has {weight} as the weight of {model!r}; it is a number from 0")
    if sum(shares.values()) == float("inf"):
        raise InvalidConfig(f"aliases: the weights of {name!r} have no finite sum")
    if not any(shares.values()):
        raise InvalidConfig(f"aliases: {name!r} gives weight to no model")


def _conversation(fields: Mapping[str, Any]) -> bytes:
    """What its requests have in common: who sends them, or else how the conversation begins, up to
    the user's first words.
    """
    for name in _SENDERS:
        if isinstance(fields.get(name), str):
            return _encoded([name, fields[name]])
    metadata = fields.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):  # as /v1/messages names the sender
        return _encoded(["user_id", metadata["user_id"]])
    messages = fields.get("messages")
    if isinstance(messages, list):
        return _encoded(messages[: _first_of_user(messages) + 1])
    begin = next((fields[name] for name in _PROMPTS if fields.get(name) is not None), None)
    if isinstance(begin, list) and begin and isinstance(begin[0], dict):
        begin = begin[: _first_of_user(begin) + 1]
    return _encoded(begin)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, default=str)[:MAX_BYTES].encode()


def _first_of_user(messages: Sequence[Any]) -> int:
    roles = (isinstance(message, dict) and message.get("role") == "user" for message in messages)
    return next((index for index, is_of_user in enumerate(roles) if is_of_user), len(messages))
