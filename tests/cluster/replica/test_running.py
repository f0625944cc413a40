"""What a gateway is sent of an engine's deltas, and how its requests end."""

import pytest

from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.running import RunningRequests
from engine.errors import EngineDead
from engine.outputs import RequestOutput

NEAR, FAR = (GatewayAddress(host, 1, b"") for host in ("near", "far"))


def delta(request_id: str, *, finished: bool = False, error: str | None = None) -> RequestOutput:
    return RequestOutput(request_id, 0, [5], [], finished=finished, prompt="x", error=error)


async def test_each_gateway_has_its_own_and_the_prompt_once() -> None:
    running = RunningRequests()
    first, second = running.begin("1", NEAR), running.begin("2", FAR)
    taken = running.take([delta("1"), delta("2"), delta("1", finished=True), delta("3")], is_alive=True)
    assert {gateway: [each.request_id for each in news] for gateway, news in taken.items()} == {
        NEAR: ["1", "1"],
        FAR: ["2"],
    }
    assert [(each.prompt_token_ids, each.prompt) for each in taken[NEAR]] == [([5], "x"), ([], None)]
    assert first.done.done() and first.is_finished and not second.done.done()


@pytest.mark.parametrize("is_alive", [True, False])
async def test_what_a_dead_engine_says_is_not_for_the_client(is_alive: bool) -> None:
    running = RunningRequests()
    request = running.begin("1", NEAR)
    taken = running.take([delta("1", finished=True, error="lost")], is_alive=is_alive)
    assert bool(taken) == is_alive and request.is_finished
    assert isinstance(request.done.exception(), EngineDead) != is_alive


async def test_a_lost_gateway_takes_its_own_requests_only() -> None:
    running = RunningRequests()
    near, far = running.begin("1", NEAR), running.begin("2", FAR)
    running.lose(NEAR)
    assert isinstance(near.done.exception(), EngineDead) and not near.is_finished  # the engine has it still
    assert not far.done.done()
