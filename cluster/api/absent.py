"""What is said of a URL at which there is nothing."""

from collections.abc import Iterable

_NOTHING = "There is nothing at this URL"
_BY_OPTION = {
    "--files-path": ("/v1/files", "/v1/batches"),
    "--lora-roots": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "--enable-sleep-mode": ("/sleep", "/wake_up", "/pause", "/resume", "/is_sleeping", "/is_paused"),
}
_RESPONSES = "/v1/responses/"
# By their ends, what of OpenAI's Responses API is not here, and why.
_ABSENT = {
    "/input_items": "the input of a stored response is not listed, but previous_response_id goes on from it",
    "/cancel": "no response runs in the background, and one that is streamed ends when its connection is closed",
    "/compact": "conversations are not compacted",
}
_OPTIONS = {path: option for option, paths in _BY_OPTION.items() for path in paths}


def nothing_at(path: str, routes: Iterable[str]) -> str:
    """`routes`: those that the server has. One that it would have with an option is told with the
    option's name.
    """
    for known, option in _OPTIONS.items():
        if (path == known or path.startswith(f"{known}/")) and known not in routes:
            return f"{_NOTHING}: the server was started without {option}"
    reason = why_absent(path)
    return f"{_NOTHING}: {reason}" if reason is not None else _NOTHING


def why_absent(path: str) -> str | None:
    """Of a URL that clients of another server may know; None of all others."""
    if not path.startswith(_RESPONSES):
        return None
    return next((reason for end, reason in _ABSENT.items() if path.endswith(end)), None)
