"""`squadron trace`: writes the steps of a running server for a trace viewer, or prints where one
request's time went.
"""

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cluster.commands.command_line import add_server_options
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
    trace = _get(options, "/debug/trace")
    options.output.write_text(json.dumps(trace), encoding="utf-8")
    steps = sum(event["name"].startswith("schedule") for event in trace["traceEvents"])
    print(f"{options.output}: {steps} steps; open it in ui.perfetto.dev or chrome://tracing")


def breakdown(why: dict[str, Any]) -> list[str]:
    """One line per phase with its share, the sum, and what became of drafts if there were any."""
    seconds: dict[str, float] = why["seconds"]
    total = sum(seconds.values())
    lines = [f"{phase:<16} {value:9.4f} s {value / total:6.1%}" for phase, value in seconds.items()]
    lines.append(f"{'sum':<16} {total:9.4f} s")
    checked, right = why["draft_tokens"], why["accepted_tokens"]
    return [*lines, *([f"{right} of {checked} drafted tokens were right ({right / checked:.1%})"] if checked else [])]


def _get(options: argparse.Namespace, path: str) -> Any:
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    request = urllib.request.Request(options.base_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise InvalidConfig(
            f"{options.base_url}{path} answers {error.code}: {error.read(500).decode(errors='replace')}"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{options.base_url} does not answer: {error}") from None
