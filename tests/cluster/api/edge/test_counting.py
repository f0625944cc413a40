"""Answers that are counted."""

import httpx
import pytest

from cluster.metrics.counters import Counters
from tests.cluster.api.scripted import running


@pytest.mark.parametrize("count", [60, pytest.param(16_700, marks=pytest.mark.long)])
def test_labels_are_of_our_making_whatever_clients_invent(count):
    """Six requests each; the long form sends 100,000."""
    counters = Counters({})
    with running(counters=counters) as server, httpx.Client(base_url=server.url) as http:

        def ask(number: int) -> None:
            http.get(f"/invented/{number}")
            http.get(f"/v1/models/invented-{number}")
            http.get(f"/debug/why/{number}?{number}")
            http.request(("PATCH", "PROPFIND", "PUT")[number % 3], "/health")
            http.post("/v1/completions", json={"model": f"invented-{number}", "prompt": "x", f"field{number}": 1})
            http.post("/v1/completions", content=b"{" * (number % 1000), headers={f"x-{number}": "y"})

        for number in range(3):
            ask(number)
        known = set(counters.figures())
        for number in range(3, count):
            ask(number)
        figures = counters.figures()
    assert set(figures) == known
    assert figures["squadron:http_requests", ("/v1/models/{model_id}", "GET", "404")] == count
    assert figures["squadron:http_requests", ("other", "GET", "404")] == count
    assert figures["squadron:http_requests", ("/health", "other", "405")] == count
    assert figures["squadron:refused_requests", ("unknown_url",)] == count
    assert figures["squadron:refused_requests", ("invalid_api_key",)] == 0
