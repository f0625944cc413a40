"""Whether requests can be taken."""

import httpx


def test_deep_health(server):
    assert httpx.get(f"{server.url}/health/deep").json() == {"status": "ok"}
    server.service.problems.append("rank 3 is silent")
    answer = httpx.get(f"{server.url}/health/deep")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "rank 3 is silent")
