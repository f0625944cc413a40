"""A span and a log line for each request, for operators.

All of it is read from the journal when the request has ended: a delta costs nothing here.
"""

import asyncio
import logging
import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from cluster.api.errors import as_api_error, request_failed
from cluster.gateway.requests.journal import Journal
from cluster.telemetry.ended import Ended, as_text
from cluster.telemetry.tracing import Span, Tracer, Value
from engine.errors import SquadronError
from engine.request import ChatPrompt, Request

logger = logging.getLogger("squadron.gateway")

CLIENT_GONE = 499  # as access logs have it


class Watcher:
    """A gateway's."""

    def __init__(self, model_name: str = "", tracer: Tracer | None = None, *, logs_requests: bool = False) -> None:
        self.model_name = model_name
        self.tracer = tracer
        self.logs_requests = logs_requests

    def watch(self, request: Request) -> "Watch":
        """To be entered when the request arrives."""
        return Watch(self, request)

    def flush(self, seconds: float) -> None:
        """Send the spans that wait; blocks for as long at most."""
        if self.tracer is not None:
            self.tracer.flush(seconds)


class Watch:
    """One request, from its arrival at the gateway until its client has everything or has
    disconnected.
    """

    def __init__(self, watcher: Watcher, request: Request) -> None:
        self.request = request  # as it is to be put to engine replicas
        self._watcher = watcher
        self._started = time.monotonic()
        self._journal: Journal | None = None
        self._span: Span | None = None
        if watcher.tracer is not None:
            self._span = watcher.tracer.begin("llm_request", request.trace_headers)
            self.request = replace(request, trace_headers=self._span.headers)

    def begin(self, journal: Journal) -> None:
        """The request has this journal, and no attempt so far."""
        self._journal = journal

    def attempt(self, journal: Journal) -> None:
        """An attempt begins."""
        if self._span is not None and journal.attempt > 0:
            self._span.event("next attempt", {"squadron.attempt": journal.attempt})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        journal = self._journal
        if journal is None or (self._span is None and not self._watcher.logs_requests):
            return
        now = time.monotonic()
        status, code = outcome(journal, error)
        reasons = reasons_of(journal)
        ended = Ended(
            id=self.request.id,
            model=self._watcher.model_name,
            key=self.request.share.key,
            status=status,
            code=code,
            finish_reasons=tuple(reasons[choice] for choice in sorted(reasons)),
            num_prompt_tokens=len(journal.prompt_token_ids),
            num_output_tokens=sum(map(len, journal.output_ids)),
            num_cached_tokens=journal.num_cached_tokens,
            num_attempts=journal.attempt - self.request.resume.attempt + 1,
            e2e_seconds=now - self._started,
            ttft_seconds=None if journal.first_token_time is None else journal.first_token_time - self._started,
            **_in_engine(journal),
        )
        if self._watcher.logs_requests:
            fields = ended.fields()
            logger.info("request ended: %s", as_text(fields), extra=fields)
        if self._span is not None:
            self._span.end(asked(journal.request, self.request) | ended.attributes(), error=code)


def _in_engine(journal: Journal) -> dict[str, Any]:
    """What the last engine has measured of a request."""
    metrics = None if journal.last is None else journal.last.metrics
    if metrics is None:
        return {}
    found: dict[str, Any] = {"phases": dict(metrics.seconds.items())}
    if metrics.first_scheduled_time is not None:
        found |= {"scheduler_seconds": metrics.scheduler_seconds, "execute_seconds": metrics.execute_seconds}
    return found


def outcome(journal: Journal, error: BaseException | None) -> tuple[int, str | None]:
    """The status of the whole answer, and the code of its error."""
    if isinstance(error, SquadronError):
        told = as_api_error(error)
        return told.status, told.code
    if journal.last is None or isinstance(error, asyncio.CancelledError):
        return CLIENT_GONE, "client_disconnected"
    reasons = reasons_of(journal).values()
    if "error" in reasons:
        told = request_failed(journal.last.error, journal.last.error_code)
        return told.status, told.code
    return (500, "request_aborted") if "abort" in reasons else (200, None)


def reasons_of(journal: Journal) -> dict[int, str]:
    """Why each choice ended, of those that have."""
    last = [] if journal.last is None else journal.last.outputs
    found = journal.finish_reasons | {choice.index: choice.finish_reason for choice in last}
    return {index: reason for index, reason in found.items() if reason is not None}


def asked(tried: Request, request: Request) -> dict[str, Value]:
    """What the client asked for; `tried` has the number of tokens that its answer could have."""
    params = request.params
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": _operation(request),
        "gen_ai.provider.name": "squadron",
        "gen_ai.request.max_tokens": tried.params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.n": params.n,
        "gen_ai.usage.num_sequences": params.num_samples,
    }
    return {name: value for name, value in found.items() if value is not None}


def _operation(request: Request) -> str:
    """As OpenTelemetry names it; a name of ours for the scores of documents."""
    if request.pooling is not None:
        return "score" if request.pooling.type == "logprobs" else "embeddings"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
