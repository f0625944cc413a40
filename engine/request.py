"""A request as it is asked for: made at the edge, and carried whole to whoever reads a field of
it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the chat template: each message a `role` (system, user or assistant) and
    its `content`.
    """

    messages: Sequence[Mapping[str, Any]]


Prompt = str | list[int] | ChatPrompt  # a list: of token ids


@dataclass(frozen=True, slots=True)
class Resume:
    """What there is of a request's answer already; of a new request nothing."""

    attempt: int = 0  # how many engine replicas were asked before
    output_ids: Sequence[Sequence[int]] = ()  # tokens of each choice, which count as outputs; empty if there are none
    cumulative_logprobs: Sequence[float] = ()  # of each choice in output_ids
    fingerprint: str | None = None  # of the engine that the tokens came from; no other may go on
    is_suspect: bool = False  # engines' processes died with it in flight, and it had gained nothing there


NEW = Resume()


@dataclass(frozen=True, slots=True)
class Request:
    """Crosses processes by pickle: plain values only."""

    id: str  # unique among those that run where it is given to
    prompt: Prompt
    params: SamplingParams
    _: KW_ONLY
    priority: int = 0  # lower is served first, where scheduling_policy is "priority"
    cache_salt: str | None = None  # prefixes are shared in the cache among requests of the same salt only
    joins_deltas: bool = True  # a slow reader may get the deltas of several steps as one
    resume: Resume = NEW


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has come to an engine, its prompt as token ids."""

    request: Request
    prompt_token_ids: list[int]
    prompt: str | None = None  # a completion's as text; a conversation has none
    time: float = field(default_factory=time.monotonic)  # seconds of this process' time.monotonic()
