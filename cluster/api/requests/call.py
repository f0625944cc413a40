"""What a body comes to, whichever route it came by."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET, UnsetType

from cluster.api.requests.protocol import GenerationRequest, HandleRequest
from cluster.api.requests.validate import Unknown, warning_header, warnings
from engine.queue_limits import Load
from engine.request import Prompt, Request, estimated_tokens
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A parsed body of either route. Choice c of request r is number r * params.n + c."""

    kind: str  # prefix of its id
    id: str
    requests: tuple[Request, ...]  # one for each prompt, with the same parameters
    stream: bool
    include_usage: bool
    echo: bool
    prompt_logprobs: bool  # returned to the caller, not only used for echo
    unknown: tuple[Unknown, ...] = ()  # fields that are ignored
    digest: bytes = b""  # of a stream's request as sent
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @property
    def params(self) -> SamplingParams:
        return self.requests[0].params

    @property
    def load(self) -> Load:
        """What it adds to a queue, its prompts' tokens by estimate."""
        return Load(len(self.requests), sum(estimated_tokens(request.prompt) for request in self.requests))

    @property
    def timeout(self) -> float | None:
        """Seconds for the whole answer."""
        return self.requests[0].timeout

    def within(self, timeout: float) -> "Call":
        """The call, with at most so many seconds."""
        seconds = min(timeout, self.timeout or timeout)
        return replace(self, requests=tuple(replace(request, timeout=seconds) for request in self.requests))

    @property
    def warnings(self) -> list[str] | UnsetType:
        """For the last part of the answer, if there are any."""
        return warnings(self.unknown) or UNSET

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers: the same, for clients that ignore the body's field."""
        return warning_header(self.unknown)


def make_call(
    kind: str, asked: GenerationRequest, prompts: Sequence[Prompt], params: SamplingParams, *, echo: bool = False
) -> Call:
    call_id = f"{kind}-{uuid.uuid4().hex}"
    ids = [call_id] if len(prompts) == 1 else [f"{call_id}-{index}" for index in range(len(prompts))]
    return Call(
        kind=kind,
        id=call_id,
        requests=tuple(make_request(asked, *each, params) for each in zip(ids, prompts, strict=True)),
        stream=bool(asked.stream),
        include_usage=asked.stream_options is not None and bool(asked.stream_options.include_usage),
        echo=echo,
        prompt_logprobs=asked.prompt_logprobs is not None,
    )


def make_request(
    asked: GenerationRequest | HandleRequest, request_id: str, prompt: Prompt, params: SamplingParams
) -> Request:
    """The engine's request, from HTTP or from the handle."""
    return Request(
        request_id, prompt, params, priority=asked.priority or 0, cache_salt=asked.cache_salt, timeout=asked.timeout
    )
