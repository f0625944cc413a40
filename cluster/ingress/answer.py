"""An error that HAProxy answers itself. Imports Python's own library alone, see `haproxy`."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """An error, in the form of the gateway's (`cluster.api.errors`); `message` without quotes."""

    status: str
    code: str
    message: str
    retry_after: int | str | None = None  # seconds, or for a rule HAProxy's expression of them

    @property
    def body(self) -> str:
        kind = "server_error" if self.status.startswith("5") else "invalid_request_error"
        return _json({"error": {"message": self.message, "type": kind, "param": None, "code": self.code}})

    @property
    def anthropic_body(self) -> str:
        """Of an overload, for clients of /v1/messages."""
        error = {"type": "overloaded_error", "message": self.message, "param": None, "code": self.code}
        return _json({"type": "error", "error": error, "request_id": None})

    def rule(self, body: str | None = None, more: str = "") -> str:
        """For `http-request`; `more`: headers, as HAProxy has them."""
        more += "" if self.retry_after is None else f" hdr retry-after {self.retry_after}"
        content = f"content-type application/json string '{body or self.body}'"
        return f"http-request return status {self.status[:3]} {content}{more}"

    def file(self) -> str:
        """For `errorfile`."""
        head = [f"HTTP/1.1 {self.status}", "content-type: application/json", f"content-length: {len(self.body)}"]
        head += ["connection: close", *([] if self.retry_after is None else [f"retry-after: {self.retry_after}"])]
        return "\r\n".join([*head, "", self.body])


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
