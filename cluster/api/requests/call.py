"""A parsed body, by whichever route it came: a `Call`."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET, UnsetType

from cluster.api.answers.form import PLAIN, Form, Wanted
from cluster.api.keys.limits import Caller, Turn
from cluster.api.requests.protocol import GenerationRequest, HandleRequest, StreamOptions
from cluster.api.requests.validate import Ignored, warning_header, warnings
from engine.admission.queue_limits import NOTHING, Load, load_of
from engine.request import Adapter, Prompt, Request
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
    has_usage_so_far: bool = False  # in every chunk
    has_token_ids: bool = False
    names_tokens_by_id: bool = False  # in log probabilities
    echo: bool  # of a completion's prompt
    is_prompt_only: bool = False  # the token that engines compute at least is not shown
    echoed: str = ""  # what a chat's answer begins with
    prompt_logprobs: bool  # returned to the caller, not only used for echo
    form: Form = PLAIN  # of a chat's answer
    wanted: Wanted | None = None  # of an answer with numbers
    params_of_prompts: tuple[str, ...] = ()  # the prompts' names in errors, if not `prompt` or `messages`
    counts_events: bool = False  # each event depends on those before it
    served_by: str = ""  # the model's own name, also if another one was asked for
    ignored: tuple[Ignored, ...] = ()
    digest: bytes = b""  # of a stream's request as sent
    turn: Turn | None = None  # of a key with limits
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @property
    def params(self) -> SamplingParams:
        return self.requests[0].params

    @property
    def model(self) -> str:
        """What its answer names as its model: the adapter, if it has one."""
        adapter = self.requests[0].adapter
        return self.served_by if adapter is None else adapter.name

    def sent_by(self, caller: Caller) -> "Call":
        """The call as one of the caller's key; raises ApiError if that has not enough tokens left
        for it: those of the prompt, by estimate, and `max_tokens`.
        """
        if caller.turn is not None:
            caller.turn.reserve(int(self.load.num_tokens) + self.max_answer_tokens)
        return replace(self, requests=tuple(map(caller.key.own, self.requests)), turn=caller.turn)

    def of_body(self, served_by: str, ignored: tuple[Ignored, ...], digest: bytes) -> "Call":
        """The call for the model of this name, with what else is known of its body."""
        return replace(self, served_by=served_by, ignored=ignored, digest=digest)

    def named(self, kind: str) -> "Call":
        """A call of one request as one of another API, where ids have an underscore."""
        (request,) = self.requests
        call_id = f"{kind}_{uuid.uuid4().hex}"
        return replace(self, kind=kind, id=call_id, requests=(replace(request, id=call_id),), counts_events=True)

    def ending_with_context(self) -> "Call":
        """The call, whose `max_tokens` may exceed what the context leaves."""
        return replace(self, requests=tuple(replace(request, ends_with_context=True) for request in self.requests))

    @property
    def max_answer_tokens(self) -> int:
        """Of all that is computed, also of what `best_of` and beams drop."""
        return (self.params.max_tokens or 0) * self.params.num_samples * len(self.requests)

    @property
    def is_of_texts(self) -> bool:
        """Whether a stream's events differ in nothing but their text, but for the first and last
        ones.
        """
        return not (self.has_usage_so_far or self.has_token_ids)

    @property
    def load(self) -> Load:
        """What it adds to a queue, its prompts' tokens by estimate."""
        return sum(map(load_of, self.requests), NOTHING)

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
        return warnings(self.ignored) or UNSET

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers: the same, for clients that ignore the body's field."""
        return warning_header(self.ignored)


def make_call(
    kind: str,
    asked: GenerationRequest,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    adapter: Adapter | None,
    *,
    echo: bool = False,
    echoed: str = "",
    form: Form = PLAIN,
    max_prompt_tokens: int | None = None,
) -> Call:
    options = asked.stream_options or StreamOptions()
    call_id = f"{kind}-{uuid.uuid4().hex}"
    ids = [call_id] if len(prompts) == 1 else [f"{call_id}-{index}" for index in range(len(prompts))]
    return Call(
        kind=kind,
        id=call_id,
        requests=tuple(
            make_request(asked, *each, params, adapter, max_prompt_tokens) for each in zip(ids, prompts, strict=True)
        ),
        stream=bool(asked.stream),
        include_usage=bool(options.include_usage),
        has_usage_so_far=bool(options.continuous_usage_stats),
        has_token_ids=bool(asked.return_token_ids),
        names_tokens_by_id=bool(asked.return_tokens_as_token_ids),
        echo=echo,
        echoed=echoed,
        form=form,
        prompt_logprobs=asked.prompt_logprobs is not None,
    )


def make_request(
    asked: GenerationRequest | HandleRequest,
    request_id: str,
    prompt: Prompt,
    params: SamplingParams,
    adapter: Adapter | None,
    max_prompt_tokens: int | None = None,
    trace_headers: Mapping[str, str] | None = None,
) -> Request:
    """The engine's request, from HTTP or from the handle."""
    return Request(
        request_id,
        prompt,
        params,
        adapter=adapter,
        priority=asked.priority or 0,
        cache_salt=asked.cache_salt,
        timeout=asked.timeout,
        trace_headers=trace_headers,
        max_prompt_tokens=max_prompt_tokens,
        add_special_tokens=asked.add_special_tokens,
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
