"""The requests of a run: every kind of answer that an interruption could change; they follow from
the seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.chaos import bodies

BASIC = ("greedy", "seeded", "stop", "penalties", "choices", "logprobs", "chat", "schema", "ids", "tools", "embeddings")
# Some need what a model may not have: see `cluster.chaos.run.answerable_kinds`.
KINDS = (
    *BASIC,
    *("object", "regex", "grammar", "tags", "auto", "named", "thinking", "responses", "follow-up", "messages"),
    *("rerank", "score", "adapter"),
)
WORDS = (
    "rain harbour seven lantern under march copper the river counts slow engine glass north of winter paper bird "
    "quiet field before light and stone they carry morning away from old tower green little bridge"
).split()


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """`body` is JSON for POST `path`; a stream with usage at its end, where the route has any.
    `first`: a body for the same path, of a request before it, whose answer this one goes on from.
    """

    index: int
    kind: str
    path: str
    body: dict[str, Any]
    first: dict[str, Any] | None = None


def make_requests(
    num: int,
    *,
    model: str,
    max_tokens: int,
    others: Sequence[str] = (),
    adapter: str = "",
    seed: int = 0,
    kinds: Sequence[str] = BASIC,
) -> list[ChaosRequest]:
    """`adapter` is the model of the kind of that name. Kinds take turns, and so do the `others`
    with the model; answers have full length, unless a stop string ends them in their second half,
    or a call of a tool or a form is complete.
    """
    generator = random.Random(seed)
    models = [model, *others]
    requests = []
    for index in range(num):
        turn, place = divmod(index, len(kinds))
        chosen = adapter if kinds[place] == "adapter" else models[(turn + place) % len(models)]
        requests.append(_make(index, kinds[place], chosen, max_tokens, generator))
    return requests


def _make(index: int, kind: str, model: str, max_tokens: int, generator: random.Random) -> ChaosRequest:
    text = " ".join(generator.choice(WORDS) for _ in range(generator.randint(4, 40)))
    if kind in bodies.POOLED:
        path, body = bodies.POOLED[kind](text)
        return ChaosRequest(index, kind, path, {"model": model} | body)
    drawn = {"model": model, "temperature": 1.0, "seed": generator.randrange(1 << 31), "ignore_eos": True}
    if kind == "messages":
        return ChaosRequest(index, kind, "/v1/messages", drawn | bodies.message(text, max_tokens))
    if kind in ("responses", "follow-up"):
        first = drawn | bodies.response(text, 16, stream=False) if kind == "follow-up" else None
        body = drawn | bodies.response(text, max_tokens, calls=first is None)
        return ChaosRequest(index, kind, "/v1/responses", body, first)
    drawn |= {"max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    if kind in bodies.CHATS:
        drawn |= {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 2}
        return ChaosRequest(index, kind, "/v1/chat/completions", drawn | bodies.CHATS[kind])
    return ChaosRequest(index, kind, "/v1/completions", drawn | {"prompt": text} | bodies.completion(kind, max_tokens))
