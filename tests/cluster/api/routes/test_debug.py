"""What an operator may ask: the steps' trace, and where a request's time went."""

import httpx

from cluster.commands.trace import breakdown


def test_the_trace_is_passed_on(server):
    assert httpx.get(f"{server.url}/debug/trace").json() == {"traceEvents": [{"name": "step 0"}]}


def test_every_engine_says_how_it_is(server):
    answer = httpx.get(f"{server.url}/debug/engines").json()
    assert answer == {"engines": [{"replica": "one", "problem": None}]}


def test_why_tells_seconds_by_phase(server):
    answer = httpx.get(f"{server.url}/debug/why/known").json()
    assert answer == {"request_id": "known", "seconds": {"queue": 0.25, "decode": 0.75}}
    assert breakdown(answer["seconds"])[-1].split() == ["sum", "1.0000", "s"]


def test_why_of_an_unknown_request_is_404(server):
    answer = httpx.get(f"{server.url}/debug/why/unknown")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_request"
