"""What can go wrong, by whose fault: the caller's, the configuration's, a worker's."""

# Codes of requests that end in an error of their own (`RequestOutput.error_code`).
REQUEST_QUARANTINED = "request_quarantined"  # worker processes died of it


class SquadronError(Exception):
    """Base of every error that Squadron raises on purpose."""


class InvalidRequest(SquadronError):
    """The caller asked for something that cannot be done; nothing was started.

    `param` is the field at fault (a dotted path) and `code` a stable word such as `context_length_exceeded`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidConfig(SquadronError):
    """The configuration or the checkpoint cannot be served; the message says what would work."""


class InputProcessingError(SquadronError):
    """Something of one request alone failed (tokenizer, processors, sampling); that request ends, the batch goes on."""


class WorkerLost(SquadronError):
    """A worker died or failed; `rank` is the first one known to, `reason` one line on how."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"worker {rank} lost: {reason}")
        self.rank = rank
        self.reason = reason


class EngineDead(SquadronError):
    """The engine has stopped for good; no request can be taken."""


class RequestQuarantined(SquadronError):
    """The request took down whoever worked on it, more than once; it is not tried again."""


class Overloaded(SquadronError):
    """Too much waits already; the same request may be taken later."""


def in_a_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
