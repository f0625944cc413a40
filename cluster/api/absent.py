"""What is said of a URL at which there is nothing."""

from collections.abc import Iterable

_BY_OPTION = {
    "--files-path": ("/v1/files", "/v1/batches"),
    "--lora-roots": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "--enable-sleep-mode": ("/sleep", "/wake_up", "/pause", "/resume", "/is_sleeping", "/is_paused"),
}
_OPTIONS = {path: option for option, paths in _BY_OPTION.items() for path in paths}


def nothing_at(path: str, routes: Iterable[str]) -> str:
    """`routes`: those that the server has. One that it would have with an option is told with the
    option's name.
    """
    for known, option in _OPTIONS.items():
        if (path == known or path.startswith(f"{known}/")) and known not in routes:
            return f"There is nothing at this URL: the server was started without {option}"
    return "There is nothing at this URL"
