"""The lines of a batch: requests, and answers to them, as OpenAI writes both."""

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_LINE_BYTES = 32 << 20  # as of a request's body
MAX_CUSTOM_ID = 512  # characters
PREFIX = "/v1/"
NOT_ASKED = ("/v1/files", "/v1/batches")  # whose requests have files or folders as their answers


class Asked(msgspec.Struct):
    """A line of the input."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    stream: Any = None


class Response(msgspec.Struct):
    """What the server answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Failure(msgspec.Struct):
    """Why nothing was answered."""

    code: str
    message: str


class Answer(msgspec.Struct):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: Response | None
    error: Failure | None


class _Named(msgspec.Struct):
    custom_id: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer, as it came."""

    status: int
    body: bytes
    request_id: str = ""
    retry_after: float | None = None  # seconds


class BadLine(Exception):
    """A line that is not a request; `custom_id` if it has one."""

    def __init__(self, message: str, custom_id: str | None = None, code: str = "invalid_line") -> None:
        super().__init__(message)
        self.custom_id = custom_id
        self.code = code


def read_line(line: bytes) -> Asked:
    """Raises BadLine."""
    try:
        asked = msgspec.json.decode(line, type=Asked)
        body = msgspec.json.decode(asked.body, type=_Body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadLine(f"the line is not a request: {error}", custom_id_of(line)) from None
    if len(asked.custom_id) > MAX_CUSTOM_ID:
        raise BadLine(f"custom_id has more than {MAX_CUSTOM_ID} characters")
    if asked.method != "POST":
        raise BadLine(f"method={asked.method[:16]!r} is not POST", asked.custom_id)
    if not is_asked(asked.url):
        raise BadLine(f"url={asked.url[:64]!r} is not one that a batch can ask", asked.custom_id, "invalid_url")
    if body.stream not in (None, False):
        raise BadLine("body.stream=true: a line is answered as a whole", asked.custom_id, "stream_not_supported")
    return asked


def custom_id_of(line: bytes) -> str | None:
    """A line's, also of one that is no request; None if it has none."""
    try:
        found = msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, str) and len(found) <= MAX_CUSTOM_ID else None


def is_asked(url: str) -> bool:
    """Whether a batch may ask the URL, if the server has it."""
    is_plain = url.startswith(PREFIX) and url.isascii() and url.isprintable() and not set(url) & set("?#% ")
    goes_up = not {"", ".", ".."}.isdisjoint(url.split("/")[1:])
    return is_plain and not goes_up and not any(url == path or url.startswith(f"{path}/") for path in NOT_ASKED)


def answer_line(asked: Asked, reply: Reply) -> bytes:
    """Without the line's end."""
    try:
        found = msgspec.json.decode(reply.body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        message = f"the server answered with status {reply.status}, and not with a JSON object"
        return failure_line(BadLine(message, asked.custom_id, "invalid_answer"))
    request_id = reply.request_id or str(found.get("id") or "")
    body = msgspec.json.format(reply.body, indent=-1)  # without line breaks
    response = Response(reply.status, request_id, msgspec.Raw(body))
    return msgspec.json.encode(Answer(_new_id(), asked.custom_id, response, None))


def failure_line(error: BadLine) -> bytes:
    """Without the line's end."""
    return msgspec.json.encode(Answer(_new_id(), error.custom_id, None, Failure(error.code, str(error))))


def is_answered(line: bytes) -> bool:
    """Whether a line of the output is an answer with status 200."""
    answer = msgspec.json.decode(line, type=Answer)
    return answer.response is not None and answer.response.status_code == 200


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
