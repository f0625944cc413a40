"""What can go wrong, by whose fault: the caller's, the configuration's, a worker's."""

# Codes of requests that end in an error of their own (`RequestOutput.error_code`).
REQUEST_QUARANTINED = "request_quarantined"  # worker processes died of it
STEP_FAILED = "step_failed"  # every step with it raised an exception
CACHE_TOO_SMALL = "cache_too_small"  # since workers were replaced there is less cache than it needs

FINGERPRINT_CHANGED = "fingerprint_changed"  # only engines are left that would go on with other tokens


class SquadronError(Exception):
    """Base of every error that Squadron raises on purpose."""


class InvalidRequest(SquadronError):
    """The caller asked for something that cannot be done; nothing was started.

    `param` is the field at fault (a dotted path) and `code` a stable word such as
    `context_length_exceeded`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidConfig(SquadronError):
    """The configuration or the checkpoint cannot be served; the message says what would work."""


class InputProcessingError(SquadronError):
    """Something of one request alone failed (tokenizer, processors, sampling); that request ends,
    the batch goes on.
    """


class StepFailure(SquadronError):
    """A step did not end, nor will any after it before the executor's `restart`: see the two kinds.

    `rank` is the first one known to have failed, `reason` one line on how, `step` the one it was
    at; None: at none.
    """

    def __init__(self, message: str, rank: int, reason: str, step: int | None) -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason
        self.step = step


class WorkerLost(StepFailure):
    """A worker's process died, froze, hangs, or can compute no more."""

    def __init__(self, rank: int, reason: str, step: int | None = None) -> None:
        super().__init__(f"worker {rank} lost: {reason}", rank, reason, step)


class StepRaised(StepFailure):
    """A step raised an exception on a worker whose process is all right: what was in the step may
    be to blame.
    """

    def __init__(self, rank: int, reason: str, step: int) -> None:
        super().__init__(f"step {step} raised on worker {rank}: {reason}", rank, reason, step)


class ClusterLost(SquadronError):
    """What runs the cluster's processes is gone: none of them can be replaced any more."""


class EngineDead(SquadronError):
    """The engine has stopped for good; no request can be taken."""


class RequestQuarantined(SquadronError):
    """The request took down whoever worked on it, more than once; it is not tried again."""


class FingerprintChanged(SquadronError):
    """The request has tokens, and no engine is left that computes as the one that they came
    from.
    """


class Overloaded(SquadronError):
    """Too much waits already; the same request may be taken later."""


def in_a_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
