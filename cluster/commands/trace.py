"""`squadron trace`: writes the steps of a running server for a trace viewer, or prints where one
request's time went.
"""

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cluster.commands.command_line import add_server_options
from cluster.progress import progress
from engine.errors import InvalidConfig

TIMEOUT_SECONDS = 30.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_server_options(parser)
    parser.add_argument(
        "--why", metavar="REQUEST_ID", help="print where this request's time went, instead of writing a trace"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("trace.json"), metavar="FILE", help="file to write (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    if options.why is not None:
        for line in breakdown(_get(options, f"/debug/why/{quote(options.why, safe='')}")):
            print(line)
        return
    if options.output.is_dir():
        raise InvalidConfig(f"output={options.output} is a folder; name a file")
    num_steps = _download(options, "/debug/trace", options.output)
    print(f"{options.output}: {num_steps} steps; open it in ui.perfetto.dev or chrome://tracing")


def breakdown(why: dict[str, Any]) -> list[str]:
    """One line per phase with its share, the sum, and what became of drafts if there were any."""
    seconds: dict[str, float] = why["seconds"]
    total = sum(seconds.values())
    lines = [f"{phase:<16} {value:9.4f} s {value / total:6.1%}" for phase, value in seconds.items()]
    lines.append(f"{'sum':<16} {total:9.4f} s")
    checked, right = why["draft_tokens"], why["accepted_tokens"]
    if checked:
        places = ", ".join(map(str, why["accepted_tokens_per_pos"]))
        lines.append(f"{right} of {checked} drafted tokens were right ({right / checked:.1%}); by place: {places}")
    return lines


def _get(options: argparse.Namespace, path: str) -> Any:
    try:
        return json.loads(b"".join(_lines(options, path)))
    except ValueError as error:
        raise InvalidConfig(f"{options.base_url}{path} is no JSON: {error}") from None


def _download(options: argparse.Namespace, path: str, target: Path) -> int:
    """Write the trace to a file, as it comes; returns its number of steps."""
    num_steps = 0
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with unfinished.open("wb") as file, progress(desc=path, unit="B", unit_scale=True) as bar:
            for line in _lines(options, path):  # an event each
                num_steps += b'"name":"schedule ' in line
                file.write(line)
                bar.update(len(line))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return num_steps


def _lines(options: argparse.Namespace, path: str) -> Iterator[bytes]:
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    request = urllib.request.Request(options.base_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            yield from response
    except urllib.error.HTTPError as error:
        raise InvalidConfig(
            f"{options.base_url}{path} answers {error.code}: {error.read(500).decode(errors='replace')}"
        ) from None
    except (OSError, ValueError, HTTPException) as error:
        raise InvalidConfig(f"{options.base_url} does not answer: {error}") from None
