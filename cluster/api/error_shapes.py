"""The bodies of error answers, in the form of the API that a path belongs to."""

from typing import Any

import msgspec

ANTHROPIC_PATH = "/v1/messages"  # and what is below it
MODELS_PATH = "/v1/models"  # likewise
NO_THREADS = "thread_unsupported_request"  # Anthropic's: its clients then send the whole conversation
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def is_models(path: str) -> bool:
    """Whether both APIs have it."""
    return path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/")


def openai_error(message: str, kind: str, *, param: str | None, code: str) -> bytes:
    """`{"error": {message, type, param, code}}` as JSON."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def anthropic_error(message: str, status: int, *, param: str | None, code: str, request_id: str | None = None) -> bytes:
    """`{"type": "error", "error": {type, message}, request_id}` as JSON; `param` and `code` are
    ours.
    """
    kind = "overloaded_error" if code == "server_overloaded" else _ANTHROPIC_TYPES.get(status)
    kind = kind or ("api_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"type": kind, "message": message, "param": param, "code": code}
    if code == NO_THREADS:
        error["details"] = {"error_code": code, "unsupported": [param]}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
