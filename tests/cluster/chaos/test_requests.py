"""The requests of a run."""

from cluster.chaos.requests import KINDS, make_requests


def test_requests_are_a_function_of_the_seed_and_of_every_kind() -> None:
    requests = make_requests(20, model="m", max_tokens=100, seed=3)
    assert requests == make_requests(20, model="m", max_tokens=100, seed=3)
    assert requests != make_requests(20, model="m", max_tokens=100, seed=4)
    assert {request.kind for request in requests} == set(KINDS)
    assert {request.kind for request in make_requests(9, model="m", max_tokens=1, kinds=("chat",))} == {"chat"}
    assert requests[:5] == make_requests(5, model="m", max_tokens=100, seed=3)
