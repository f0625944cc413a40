"""What a gateway is sent of an engine's deltas, and how its requests end."""

import asyncio

import pytest

from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.running import RunningRequests
from engine.errors import EngineDead
from engine.outputs import RequestOutput
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams

NEAR, FAR = (GatewayAddress(host, 1, b"") for host in ("near", "far"))


def request(request_id: str, attempt: int = 0) -> Request:
    return Request(request_id, "x", SamplingParams(), resume=Resume(attempt))


def delta(request_id: str, *, finished: bool = False, error: str | None = None) -> RequestOutput:
    return RequestOutput(request_id, 0, [5], [], finished=finished, prompt="x", error=error)


async def test_each_gateway_has_its_own_and_the_prompt_once() -> None:
    running = RunningRequests()
    first, second = await running.begin(request("1"), NEAR), await running.begin(request("2"), FAR)
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
    one = await running.begin(request("1"), NEAR)
    taken = running.take([delta("1", finished=True, error="lost")], is_alive=is_alive)
    assert bool(taken) == is_alive and one.is_finished
    assert isinstance(one.done.exception(), EngineDead) != is_alive


async def test_a_lost_gateway_takes_its_own_requests_only() -> None:
    running = RunningRequests()
    near, far = await running.begin(request("1"), NEAR), await running.begin(request("2"), FAR)
    running.lose(NEAR)
    assert isinstance(near.done.exception(), EngineDead) and not near.is_finished  # the engine has it still
    assert not far.done.done()


async def test_a_later_attempt_waits_until_the_earlier_one_has_ended_and_gets_none_of_its_deltas() -> None:
    running = RunningRequests()
    earlier = await running.begin(request("1"), NEAR)
    beginning = asyncio.create_task(running.begin(request("1", 1), NEAR))
    with pytest.raises(EngineDead, match="a later attempt"):
        await earlier.done
    await asyncio.sleep(0)
    assert not beginning.done()
    running.end("1")
    later = await beginning
    assert running.take([delta("1", finished=True)], is_alive=True) == {} and not later.done.done()
    assert len(running) == 1
