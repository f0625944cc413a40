"""What an operator may ask: the steps' trace, and where a request's time went."""

import httpx

from cluster.commands.trace import breakdown


def test_the_trace_is_passed_on(server):
    assert httpx.get(f"{server.url}/debug/trace").json() == {"traceEvents": [{"name": "step 0"}]}


def test_every_engine_says_how_it_is(server):
    answer = httpx.get(f"{server.url}/debug/engines").json()
    assert answer == {"engines": [{"replica": "one", "problem": None}]}


def test_why_tells_seconds_by_phase_and_what_became_of_drafts(server):
    answer = httpx.get(f"{server.url}/debug/why/known").json()
    assert answer.pop("request_id") == "known"
    assert answer == {"seconds": {"queue": 0.25, "decode": 0.75}, "draft_tokens": 8, "accepted_tokens": 6}
    *_, last, drafts = breakdown(answer)
    assert last.split() == ["sum", "1.0000", "s"]
    assert drafts == "6 of 8 drafted tokens were right (75.0%)"
    assert breakdown(answer | {"draft_tokens": 0, "accepted_tokens": 0})[-1] == last


def test_why_of_an_unknown_request_is_404(server):
    answer = httpx.get(f"{server.url}/debug/why/unknown")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_request"
