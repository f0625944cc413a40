"""What a request comes to, whichever route it came by."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from cluster.api.requests.validate import Unknown, warning_header, warnings
from engine.request import Prompt
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a request comes to, whichever route it came by. Choice c of prompt p is number p *
    params.n + c.
    """

    kind: str  # the beginning of its id
    prompts: Sequence[Prompt]
    params: SamplingParams
    stream: bool
    include_usage: bool
    priority: int
    cache_salt: str | None
    echo: bool = False
    prompt_logprobs: bool = False  # told to the caller, not only used for the echo
    unknown: tuple[Unknown, ...] = ()  # fields that are ignored
    digest: bytes = b""  # of a stream's request, as it was sent
    id: str = ""  # made where it is not given
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.id or f"{self.kind}-{uuid.uuid4().hex}")

    @property
    def warnings(self) -> list[str] | UnsetType:
        """For the last thing that is sent, if there are any."""
        return warnings(self.unknown) or UNSET

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer: the same, for those who read no further."""
        return warning_header(self.unknown)
