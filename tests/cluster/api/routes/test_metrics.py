"""Where Prometheus reads, and who may."""

import httpx

from tests.cluster.api.scripted import running

ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}


def test_the_services_figures_are_told_as_they_are(server):
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.text == "# none\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_without_keys_only_this_machine_may_read_them(server):
    answer = httpx.get(f"{server.url}/metrics", headers=ELSEWHERE)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "key_or_loopback_needed"


def test_an_option_lets_everybody_read_them():
    with running(open_metrics=True) as server:
        assert httpx.get(f"{server.url}/metrics", headers=ELSEWHERE).status_code == 200
        assert httpx.get(f"{server.url}/debug/engines", headers=ELSEWHERE).status_code == 403
