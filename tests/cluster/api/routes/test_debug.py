"""What an operator may ask: the steps' trace, and where a request's time went."""

import json
import os

import httpx

from cluster.cli import main
from cluster.commands.trace import breakdown
from cluster.version import VERSION
from tests.cluster.api.scripted import running


def test_the_trace_is_passed_on(server):
    assert httpx.get(f"{server.url}/debug/trace").json() == {"traceEvents": [{"name": "step 0"}]}


def test_an_engine_that_does_not_answer_is_told_before_the_trace_begins(server):
    server.service.problems.append("not every replica answered")
    answer = httpx.get(f"{server.url}/debug/trace")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_ready"


def test_the_trace_is_written_as_it_comes(server, tmp_path, capsys):
    target = tmp_path / "trace.json"
    assert main(["trace", "--base-url", server.url, "--output", str(target)]) == 0
    assert json.loads(target.read_text()) == {"traceEvents": [{"name": "step 0"}]}
    assert "0 steps" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [target]


def test_a_trace_that_is_not_given_leaves_no_file(server, tmp_path, capsys):
    server.service.problems.append("not every replica answered")
    assert main(["trace", "--base-url", server.url, "--output", str(tmp_path / "trace.json")]) == 2
    assert "answers 503" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_every_engine_says_how_it_is(server):
    answer = httpx.get(f"{server.url}/debug/engines").json()
    tasks = answer["gateway"].pop("tasks")
    assert tasks and all(count > 0 for count in tasks.values())
    gateway = {"pid": os.getpid(), "requests": 2, "waiting": 1}
    assert answer == {"engines": [{"replica": "one", "problem": None}], "gateway": gateway}


def test_why_tells_seconds_by_phase_and_what_became_of_drafts(server):
    answer = httpx.get(f"{server.url}/debug/why/known").json()
    assert answer.pop("request_id") == "known"
    drafts = {"draft_tokens": 8, "accepted_tokens": 6, "accepted_tokens_per_pos": [4, 2]}
    assert answer == {"seconds": {"queue": 0.25, "decode": 0.75}} | drafts
    *_, last, drafts = breakdown(answer)
    assert last.split() == ["sum", "1.0000", "s"]
    assert drafts == "6 of 8 drafted tokens were right (75.0%); by place: 4, 2"
    assert breakdown(answer | {"draft_tokens": 0, "accepted_tokens": 0})[-1] == last


def test_why_of_an_unknown_request_is_404(server):
    answer = httpx.get(f"{server.url}/debug/why/unknown")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_request"


def test_the_view_is_small_and_kept_by_nobody(server):
    answer = httpx.get(f"{server.url}/debug/view")
    engines = [{"replica": "one", "view": {"steps": []}}]
    assert answer.json() == {"version": VERSION, "can_kill": False, "engines": engines}
    assert answer.headers["cache-control"] == "no-store"


class Killer:
    """Counts."""

    def __init__(self):
        self.num_killed = 0

    async def kill_worker(self):
        self.num_killed += 1
        return {"replica": "one", "rank": 0, "pid": 7}


def test_a_worker_is_killed_where_that_is_wanted_and_for_the_own_page_alone(server):
    assert httpx.post(f"{server.url}/debug/kill_worker", headers={"origin": server.url}).status_code == 404
    assert "/debug/kill_worker" not in httpx.get(f"{server.url}/openapi.json").json()["paths"]
    killer = Killer()
    with running(killer=killer) as demo:
        url = f"{demo.url}/debug/kill_worker"
        assert httpx.get(f"{demo.url}/debug/view").json()["can_kill"] is True
        assert "/debug/kill_worker" in httpx.get(f"{demo.url}/openapi.json").json()["paths"]
        for headers in ({}, {"origin": "http://evil.example"}, {"origin": demo.url, "x-forwarded-for": "192.0.2.7"}):
            assert httpx.post(url, headers=headers).status_code == 403
        assert httpx.get(url, headers={"origin": demo.url}).status_code == 405
        assert killer.num_killed == 0
        answer = httpx.post(url, headers={"origin": demo.url})
        assert (answer.status_code, answer.json()) == (200, {"replica": "one", "rank": 0, "pid": 7})
        assert killer.num_killed == 1
