"""What /metrics may show after inputs of every kind: no series that a client has made."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import requests
from prometheus_client.parser import text_string_to_metric_families

from cluster.api.edge.counting import METHODS
from cluster.launch.packages import ROOT
from cluster.metrics.counters import OTHER
from tests.end_to_end.fuzz.judge import GIVEN_UP_SECONDS, Judge

Series = tuple[str, tuple[tuple[str, str], ...]]  # name, and labels with their values
OF_A_LIST = ("le", "finished_reason", "cause", "phase", "source", "direction", "kind")  # labels with values of our own


class SeriesCheck:
    """Looks before the inputs, and after them; `headers`: of its own requests."""

    def __init__(self, url: str, judge: Judge, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._url = url
        self._judge = judge
        self._headers = headers
        document = requests.get(f"{url}/openapi.json", headers=headers, timeout=GIVEN_UP_SECONDS).json()
        self._routes = {*document["paths"], "/openapi.json", OTHER}
        self._before = self._read()
        self._known = {value for _, labels in self._before for _, value in labels}

    def look(self) -> None:
        """Any new series is of our own labels, of routes that there are, and of codes that the
        sources have. Some of these no client reads: of an answer in the middle of its body.
        """
        after = self._read()
        for name, labels in sorted(after - self._before):
            for label, value in labels:
                if not self._is_ours(label, value):
                    self._judge.fail(f"a series that a client has made: {label}={value[:200]!r}", f"{name} {labels}")
        self._judge.num_series = len(self._before), len(after)

    def _is_ours(self, label: str, value: str) -> bool:
        match label:
            case "route":
                return value in self._routes
            case "method":
                return value in (*METHODS, OTHER)
            case "status":
                return len(value) == 3 and value.isdecimal()
            case "reason":
                return value == OTHER or value in _codes()
            case _:
                return label in OF_A_LIST or value in self._known

    def _read(self) -> set[Series]:
        told = requests.get(f"{self._url}/metrics", headers=self._headers, timeout=GIVEN_UP_SECONDS).text
        samples = [sample for family in text_string_to_metric_families(told) for sample in family.samples]
        return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}


@cache
def _codes() -> frozenset[str]:
    """Every text in our sources that may be one; some begin with the kind of a number."""
    files = [file for package in ("cluster", "engine") for file in (ROOT / package).rglob("*.py")]
    found = {code for file in files for code in re.findall(r'"((?:{[a-z]+}|[a-z]+)(?:_[a-z]+)+)"', file.read_text())}
    return frozenset(re.sub("{.+}", kind, code) for code in found for kind in ("integer", "decimal"))
