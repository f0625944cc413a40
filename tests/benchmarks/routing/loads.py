"""What clients ask: conversations, or questions behind a few long beginnings."""

import random
from collections.abc import Iterator

from cluster.gateway.engines.prefixes import beginnings_of
from engine.request import BYTES_PER_TOKEN, Request
from engine.sampling_params import SamplingParams
from tests.benchmarks.routing.engine import Asked

PARAMS = SamplingParams()
NUM_ANSWER = 128  # tokens
NUM_SYSTEMS = 200
SYSTEM_BYTES = 8192
TURNS = 6  # of a conversation


def text_of(draw: random.Random, num_bytes: int) -> str:
    return draw.randbytes(num_bytes // 2).hex()


class Conversations:
    """Each turn's prompt is all that was said before it, and a question."""

    name = "conversations"

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._said: dict[int, tuple[int, str]] = {}  # turns, text

    def next(self, conversation: int, now: float) -> tuple[Request, Asked]:
        turns, said = self._said.get(conversation, (0, text_of(self._draw, 512)))
        prompt = said + text_of(self._draw, self._draw.randrange(256, 1536))
        whole = prompt + text_of(self._draw, NUM_ANSWER * BYTES_PER_TOKEN)
        self._said[conversation] = (0, text_of(self._draw, 512)) if turns == TURNS - 1 else (turns + 1, whole)
        return asked(prompt, whole, conversation, now)


class SharedBeginnings:
    """A question behind one of NUM_SYSTEMS long texts, some of which are asked for more often."""

    name = "shared beginnings"

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._systems = [text_of(self._draw, SYSTEM_BYTES) for _ in range(NUM_SYSTEMS)]
        self._weights = [1 / (rank + 1) for rank in range(NUM_SYSTEMS)]

    def next(self, conversation: int, now: float) -> tuple[Request, Asked]:
        (system,) = self._draw.choices(self._systems, self._weights)
        prompt = system + text_of(self._draw, 512)
        return asked(prompt, prompt, conversation, now)


def asked(prompt: str, whole: str, conversation: int, now: float) -> tuple[Request, Asked]:
    """`whole`: with the answer."""
    request = Request("simulated", prompt, PARAMS)
    beginnings = beginnings_of(request)
    later = beginnings if whole is prompt else beginnings_of(Request("simulated", whole, PARAMS))
    return request, Asked(now, len(prompt) // BYTES_PER_TOKEN, NUM_ANSWER, beginnings, later, conversation)


def loads(seed: int) -> Iterator[Conversations | SharedBeginnings]:
    yield Conversations(seed)
    yield SharedBeginnings(seed)
