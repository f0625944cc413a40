"""What a body comes to, whichever route it came by."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET, UnsetType

from cluster.api.answers.form import PLAIN, Form
from cluster.api.keys.limits import Caller, Turn
from cluster.api.requests.protocol import GenerationRequest, HandleRequest
from cluster.api.requests.validate import Unknown, warning_header, warnings
from engine.admission.queue_limits import Load
from engine.request import Prompt, Request, estimated_tokens
from engine.sampling_params import SamplingParams

TRACE_HEADERS = ("traceparent", "tracestate")
MAX_TRACE_HEADER = 512  # characters, which the standard has everyone pass on


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
    form: Form = PLAIN  # of a chat's answer
    unknown: tuple[Unknown, ...] = ()  # fields that are ignored
    digest: bytes = b""  # of a stream's request as sent
    turn: Turn | None = None  # of a key with limits
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @property
    def params(self) -> SamplingParams:
        return self.requests[0].params

    def sent_by(self, caller: Caller) -> "Call":
        """The call as one of the caller's key; raises ApiError if that has not enough tokens left
        for it: those of the prompt, by estimate, and `max_tokens`.
        """
        if caller.turn is not None:
            num_answer_tokens = (self.params.max_tokens or 0) * self.params.n
            caller.turn.reserve(int(self.load.num_tokens) + num_answer_tokens * len(self.requests))
        return replace(self, requests=tuple(map(caller.key.own, self.requests)), turn=caller.turn)

    def of_body(self, unknown: tuple[Unknown, ...], digest: bytes) -> "Call":
        """The call, with what else is known of its body."""
        return replace(self, unknown=unknown, digest=digest)

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
    kind: str,
    asked: GenerationRequest,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    echo: bool = False,
    form: Form = PLAIN,
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
        form=form,
        prompt_logprobs=asked.prompt_logprobs is not None,
    )


def make_request(
    asked: GenerationRequest | HandleRequest, request_id: str, prompt: Prompt, params: SamplingParams
) -> Request:
    """The engine's request, from HTTP or from the handle."""
    return Request(
        request_id, prompt, params, priority=asked.priority or 0, cache_salt=asked.cache_salt, timeout=asked.timeout
    )


def traced(call: Call, headers: Mapping[str, str]) -> Call:
    """The call as part of the span that the client's headers name, if they do."""
    trace_headers = trace_context(headers)
    if trace_headers is None:
        return call
    return replace(call, requests=tuple(replace(request, trace_headers=trace_headers) for request in call.requests))


def trace_context(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Of a client's headers those of W3C's trace context; None without a `traceparent`. One that is
    malformed begins a trace of its own, as the standard has it, and is no error.
    """
    if headers is None or headers.get("traceparent") is None:
        return None
    found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
    return {name: value for name, value in found.items() if len(value) <= MAX_TRACE_HEADER}
