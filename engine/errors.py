"""Errors, by cause: the caller, the configuration, a worker."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

_SECRET = re.compile(r"(://[^/@:\s]*:)(?!\d+[/\s])[^@\s]*@")  # not a port, of a path with an @

# Codes of requests that end in an error of their own (`RequestOutput.error_code`).
REQUEST_QUARANTINED = "request_quarantined"  # it crashed worker processes
STEP_FAILED = "step_failed"  # every step with it raised an exception
CACHE_TOO_SMALL = "cache_too_small"  # after workers were replaced there is less cache than it needs
DEADLINE_EXCEEDED = "deadline_exceeded"  # its timeout passed
NO_TOKEN_LEFT = "no_token_left"  # its parameters and its structured output exclude each other
TOKEN_TOO_COMPLEX = "token_too_complex"  # its structured output takes too much work at one token
OF_THE_REQUEST = (NO_TOKEN_LEFT, TOKEN_TOO_COMPLEX)  # it would end so on every engine, each time

FINGERPRINT_CHANGED = "fingerprint_changed"  # only engines with another fingerprint are left


class SquadronError(Exception):
    """Base of every error that Squadron raises on purpose."""


class InvalidRequest(SquadronError):
    """The request is invalid; nothing was started.

    `param` is the path of the field at fault and `code` a stable word such as
    `context_length_exceeded`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def context_exceeded(context: int, however: str, *, param: str) -> InvalidRequest:
    """In the words by which clients know it: `litellm` by the first sentence, `langchain-openai` by
    "prompt is too long", which `however` has to have where it is the prompt that is.
    """
    message = f"This model's maximum context length is {context} tokens. However, {however}"
    return InvalidRequest(message, param=param, code="context_length_exceeded")


class InvalidConfig(SquadronError):
    """The configuration or the checkpoint cannot be served; the message says what would work."""


@contextmanager
def naming(what: str, *, among: int = 2) -> Iterator[None]:
    """Have an InvalidConfig that is raised within begin with `what` it is about. `among`: how many
    there are of these; the only one needs no name.
    """
    try:
        yield
    except InvalidConfig as error:
        if among < 2:
            raise
        raise InvalidConfig(f"{what}: {error}") from None


class InputProcessingError(SquadronError):
    """Something failed that concerns one request only (tokenizer, processors, sampling); that
    request ends, the batch continues. `code` may be one of those above.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class StepFailure(SquadronError):
    """A step failed, and so does every later one until the executor's `restart`: see the two kinds.

    `rank` is the first one known to have failed, `reason` one line on how, `step` the one it was
    at; None: at none.
    """

    def __init__(self, message: str, rank: int, reason: str, step: int | None) -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason
        self.step = step


class WorkerLost(StepFailure):
    """A worker's process died, froze, hangs, or can no longer compute."""

    def __init__(self, rank: int, reason: str, step: int | None = None) -> None:
        super().__init__(f"worker {rank} lost: {reason}", rank, reason, step)


class StepRaised(StepFailure):
    """A step raised an exception on a worker whose process is healthy: a request in the step may be
    the cause.
    """

    def __init__(self, rank: int, reason: str, step: int) -> None:
        super().__init__(f"step {step} raised on worker {rank}: {reason}", rank, reason, step)


class ClusterLost(SquadronError):
    """Ray's own processes are gone: no process can be replaced any more."""


class EngineDead(SquadronError):
    """The engine has stopped for good; no request can be accepted."""


class RequestQuarantined(SquadronError):
    """The request repeatedly crashed the processes that computed it; it is not tried again."""


class DeadlineExceeded(SquadronError):
    """The request's timeout passed before its answer was complete."""


class FingerprintChanged(SquadronError):
    """The request has tokens, and no engine with the same fingerprint is left; not `is_final`: it
    has waited long enough, and one that is on its way may have it.
    """

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


class Overloaded(SquadronError):
    """Too many requests are waiting; the same request may be accepted later: in about `retry_after`
    seconds, as far as is known. `limit`: the name of the one that it met, if that is a queue's.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.limit = limit


def in_a_line(error: BaseException) -> str:
    """An exception's type and the first line of its message, `without_secret`."""
    return without_secret(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def without_secret(text: str) -> str:
    """Of a URI such as s3://KEY:SECRET@bucket/folder, also within a message."""
    return _SECRET.sub(r"\1…@", text)


@contextmanager
def going_on(logger: logging.Logger, what: str) -> Iterator[None]:
    """Around a turn of a loop that a service is nothing without: what fails unforeseen is logged,
    and does not end the loop.
    """
    try:
        yield
    except Exception:
        logger.exception("%s failed; going on", what)
