"""Whether requests can be taken."""

import httpx

OK = {"status": "ok"}


def test_clouds_may_ask_by_another_name(server):
    assert [httpx.get(f"{server.url}/ping").json(), httpx.head(f"{server.url}/ping").status_code] == [OK, 200]
    server.service.problems.append("rank 3 is silent")
    asked = [httpx.get(f"{server.url}/{name}") for name in ("ping", "health")]
    assert [answer.status_code for answer in asked] == [503, 503]
    assert asked[0].json() == asked[1].json()


def test_deep_health(server):
    assert httpx.get(f"{server.url}/health/deep").json() == OK
    server.service.problems.append("rank 3 is silent")
    answer = httpx.get(f"{server.url}/health/deep")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "rank 3 is silent")
