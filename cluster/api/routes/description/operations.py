"""How an operation is described, and the operations of operators: the page, monitoring, and what
has engines pause and sleep.
"""

from typing import Any, get_args

from cluster.api.service import KILL_PATH
from cluster.page.files import read_files
from engine.frontend.intermission import LEVELS, TAGS, Mode

REFERENCE = "#/components/schemas/{}"


def page_paths() -> dict[str, Any]:
    """Of the page's files, which anybody may have."""
    kinds = {
        "/": ("text/html",),
        "/page/{file}": ("text/html", "text/css", "text/javascript", "image/svg+xml"),
    }
    paths: dict[str, Any] = {
        path: {"get": operation({kind: {"schema": {"type": "string"}} for kind in types}) | {"security": []}}
        for path, types in kinds.items()
    }
    paths["/page/{file}"]["get"] |= in_path("file", {"enum": list(read_files())})
    return paths


def monitoring_paths(*, has_killer: bool) -> dict[str, Any]:
    told = operation(as_json({"type": "object"}))
    paths = {
        "/health": {"get": told | {"security": []}},
        "/ping": {"get": told | {"security": []}},
        "/health/deep": {"get": told},
        "/metrics": {"get": operation({"text/plain": {"schema": {"type": "string"}}})},
        "/debug/engines": {"get": told},
        "/debug/trace": {"get": told},
        "/debug/view": {"get": told | {"parameters": [_in_query("replica", {"type": "string"})]}},
        "/debug/why/{request_id}": {"get": told | in_path("request_id")},
    }
    return paths | ({KILL_PATH: {"post": told}} if has_killer else {})


def control_paths() -> dict[str, Any]:
    """Of engines that pause and sleep."""
    done = operation(as_json({"type": "object"}))
    mode = _in_query("mode", {"enum": list(get_args(Mode)), "default": "abort"})
    level = _in_query("level", {"enum": list(LEVELS), "default": 1})
    tags = _in_query("tags", {"type": "array", "items": {"enum": list(TAGS)}})
    model = _in_query("model", {"type": "string"})
    parameters = {"sleep": [level, mode], "wake_up": [tags], "pause": [mode], "resume": list[Any]()}
    changes = {f"/{what}": {"post": done | {"parameters": [*each, model]}} for what, each in parameters.items()}
    return changes | {f"/{what}": {"get": done | {"parameters": [model]}} for what in ("is_sleeping", "is_paused")}


def generation(request: str, answer: str, chunk: str, error: str = "Error") -> dict[str, Any]:
    described = question(request, answer, error)
    content = described["responses"]["200"]["content"]
    content["text/event-stream"] = {"schema": reference(chunk)}
    return described


def question(request: str, answer: str, error: str = "Error") -> dict[str, Any]:
    body = {"required": True, "content": as_json(reference(request))}
    return operation(as_json(reference(answer)), error) | {"requestBody": body}


def operation(content: dict[str, Any], error: str = "Error") -> dict[str, Any]:
    failure = {"description": "Why there is no answer", "content": as_json(reference(error))}
    return {"responses": {"200": {"description": "The answer", "content": content}, "default": failure}}


def as_json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def reference(name: str) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(name)}


def _in_query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def in_path(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """`schema`: None for any text."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema or {"type": "string"}}]}
