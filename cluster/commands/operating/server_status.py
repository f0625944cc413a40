"""What a server tells of itself over HTTP, as lines for people."""

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from typing import NamedTuple

from engine.errors import InvalidConfig

SECONDS = 40.0  # for an answer: longer than /health/deep takes (`PROBE_SECONDS`)
GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_swapped": "swapped",
}
PREFILL = "squadron:prefill_engines"  # there only if there are any
_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)")


class Told(NamedTuple):
    lines: list[str]
    is_well: bool  # whether nothing is wrong with it


def ask_server(url: str, api_key: str | None) -> Told:
    """Raises InvalidConfig if nothing answers."""
    status, version = _get(url, "/version", api_key)
    lines = [f"server    {url}, {_version(version) if status == 200 else _message(version)}"]
    status, health = _get(url, "/health/deep", api_key)
    is_well = status == 200
    lines.append(f"health    {'ok' if is_well else _message(health)}")
    status, models = _get(url, "/v1/models", api_key)
    lines.append(f"models    {_names(models) if status == 200 else _message(models)}")
    status, metrics = _get(url, "/metrics", api_key)
    lines += of_metrics(metrics) if status == 200 else [f"metrics   {_message(metrics)}"]
    status, engines = _get(url, "/debug/engines", api_key)
    problems = list(of_engines(engines)) if status == 200 else []
    return Told(lines + problems, is_well and not problems)


def of_engines(body: str) -> Iterator[str]:
    """A line for each replica that cannot answer, or compute prompts, of /debug/engines."""
    try:
        for engine in json.loads(body)["engines"]:
            if engine["problem"] is not None:
                kind = "prefill" if engine.get("computes_prompts") else "engine"
                yield f"problem   {kind} {engine['replica']}: {engine['problem']}"
    except (ValueError, KeyError, TypeError):
        yield f"problem   {_message(body)}"


def of_metrics(text: str) -> Iterator[str]:
    """A line for the engines that answer, one for those that compute prompts for them, if there are
    any, and one for requests, of a page in Prometheus' format.
    """
    totals, up, usages = Counter[str](), [], []
    num_prefill = 0
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, _, value = found.groups()
        if name in GAUGES:
            totals[name] += int(float(value))
        elif name == "squadron:engine_up":
            up.append(float(value) == 1)
        elif name == PREFILL:
            num_prefill += int(float(value))
        elif name == "vllm:kv_cache_usage_perc":
            usages.append(float(value))
    yield f"engines   {sum(up)} of {len(up)} can answer; cache in use: {_percent(usages)}"
    if num_prefill:
        yield f"prefill   {num_prefill} more connected, for prompts alone"
    yield "requests  " + ", ".join(f"{totals[name]} {word}" for name, word in GAUGES.items())


def _percent(shares: list[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or "-"


def _get(url: str, path: str, api_key: str | None) -> tuple[int, str]:
    """Status and body. Raises InvalidConfig if nothing answers."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError, HTTPException) as error:
        raise InvalidConfig(f"{url} does not answer: {error}") from None


def _version(body: str) -> str:
    try:
        return f"squadron {json.loads(body)['version']}"
    except (ValueError, KeyError, TypeError):
        return "which is not Squadron"


def _names(body: str) -> str:
    """Of models."""
    try:
        return ", ".join(str(model["id"]) for model in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return _message(body)


def _message(body: str) -> str:
    """Of an error, in one line."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip().partition("\n")[0] or "no answer"
