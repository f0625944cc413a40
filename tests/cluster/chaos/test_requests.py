"""The requests of a run."""

from cluster.chaos.requests import KINDS, make_requests


def test_requests_are_a_function_of_the_seed_and_of_every_kind() -> None:
    requests = make_requests(30, model="m", max_tokens=100, seed=3, kinds=KINDS)
    assert requests == make_requests(30, model="m", max_tokens=100, seed=3, kinds=KINDS)
    assert requests != make_requests(30, model="m", max_tokens=100, seed=4, kinds=KINDS)
    assert {request.kind for request in requests} == set(KINDS)
    assert {request.kind for request in make_requests(9, model="m", max_tokens=1, kinds=("chat",))} == {"chat"}
    assert requests[:5] == make_requests(5, model="m", max_tokens=100, seed=3)
    assert all(request.body["model"] == "m" for request in requests if request.kind != "adapter")
    adapted = make_requests(2, model="m", adapter="a", max_tokens=1, kinds=("adapter", "chat"))
    assert [request.body["model"] for request in adapted] == ["a", "m"]
    turns = make_requests(4, model="m", others=["o"], max_tokens=1, kinds=("chat", "greedy"))
    assert [(each.kind, each.body["model"]) for each in turns] == [
        ("chat", "m"),
        ("greedy", "o"),
        ("chat", "o"),
        ("greedy", "m"),
    ]
    [follow_up] = [request for request in requests if request.first is not None]
    assert (follow_up.kind, follow_up.path) == ("follow-up", "/v1/responses")
