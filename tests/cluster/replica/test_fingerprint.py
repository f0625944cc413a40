"""A request goes on only where it would have the same tokens: gateways bind it to a fingerprint,
ranks agree on one level.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from cluster.api.errors import as_api_error
from cluster.gateway.gateway import Gateway
from cluster.owner import this_process
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.checkpoint.fingerprint import fingerprint
from engine.config import EngineConfig
from engine.errors import FingerprintChanged
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.test_gateway import REFERENCE, SECONDS, Replica, make_gateway, report, tokens
from tests.cluster.replica.test_deployment import CONFIG, PARAMS, Replicas
from tests.cluster.replica.test_deployment import Replica as EngineReplica

__all__ = ["make_gateway"]


async def test_a_stream_passes_over_replicas_that_would_go_on_otherwise(make_gateway) -> None:
    replicas = Replica(dies_after=5), Replica(fingerprint="fp_two"), Replica()
    gateway = await make_gateway(*replicas, max_attempts=3)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE
    assert [replica.requests[0].resume.fingerprint for replica in replicas] == [None, "fp_one", "fp_one"]


class Stillborn(Replica):
    """Takes a request, and dies."""

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        await self.take(request, gateway)
        await asyncio.sleep(0.05)
        await self.client.close()
        raise EngineLost("died")


async def test_without_a_token_any_replica_may_go_on(make_gateway) -> None:
    gateway = await make_gateway(Stillborn(), Replica(fingerprint="fp_two"), max_attempts=3)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE


async def test_where_no_such_replica_comes_the_client_is_told(make_gateway) -> None:
    gateway = await make_gateway(Replica(dies_after=5), Replica(fingerprint="fp_two"), max_attempts=3, patience=0.3)
    heard: list[int] = []
    with pytest.raises(FingerprintChanged, match="within 0 s: it computes otherwise") as raised:
        async for delta in gateway.generate(Request("r", [1], SamplingParams(max_tokens=12))):
            assert delta.fingerprint == "fp_one"
            heard += [token_id for output in delta.outputs for token_id in output.token_ids]
    assert heard == REFERENCE[:5] and not raised.value.is_final, "one may come yet"
    told = as_api_error(raised.value)
    assert (told.status, told.code) == (503, "fingerprint_changed")


async def test_the_client_is_told_at_once_where_all_replicas_compute_otherwise(make_gateway) -> None:
    """And none starts, which might not: until then the request waits."""
    replicas = Replica(dies_after=5), Replica(fingerprint="fp_two"), Replica(fingerprint="fp_three")
    gateway = await make_gateway(*replicas, max_attempts=3)
    heard = asyncio.create_task(tokens(gateway))
    async with asyncio.timeout(SECONDS):
        while not replicas[2].requests:
            await asyncio.sleep(0.01)
    for replica in replicas[1:]:
        await replica.client.connect(gateway._connections.address)
        replica.client.report(replace(report(replica.fingerprint), fingerprint=replica.fingerprint))
    assert not heard.done()
    gateway._engines.settled = 3  # one more runs, which has not told its fingerprint yet
    async with asyncio.timeout(SECONDS):
        while gateway._replicas._stranded._num_settled != 3:
            await asyncio.sleep(0.01)
    assert not heard.done()
    gateway._engines.settled = 2
    with pytest.raises(
        FingerprintChanged, match="another fingerprint than that of the request's tokens: it compu"
    ) as raised:
        await asyncio.wait_for(heard, SECONDS)
    assert raised.value.is_final


async def test_a_stream_taken_up_again_is_bound_from_the_start(make_gateway) -> None:
    gateway = await make_gateway(Replica(fingerprint="fp_two"), Replica(), max_attempts=3)
    params, resume = SamplingParams(max_tokens=12), Resume(fingerprint="fp_one")
    again = gateway.generate(Request("r", [1], params, joins_deltas=False, resume=resume))
    assert [delta.fingerprint async for delta in again] == ["fp_one"] * len(REFERENCE)


@pytest.fixture
async def unlike() -> AsyncIterator[list[EngineReplica]]:
    """Two real engines whose results differ."""
    replicas = []
    for dtype in ("bfloat16", "float32"):
        replica = EngineReplica.__new__(EngineReplica)
        await replica.__init__(
            EngineConfig.create(**CONFIG.model_dump() | {"dtype": dtype, "kv_cache_memory_bytes": 32 << 20}),
            this_process(),
        )
        replicas.append(replica)
    yield replicas
    for replica in replicas:
        await replica.stop()


async def test_engines_that_compute_otherwise_refuse_and_tell_why(unlike: list[EngineReplica]) -> None:
    gateway = Gateway(Replicas(unlike), max_attempts=3, patience=1.0)
    await gateway.start("127.0.0.1")
    heard = 0
    try:
        with pytest.raises(FingerprintChanged):
            async for delta in gateway.generate(Request("r", "one two", PARAMS)):
                heard += sum(len(output.token_ids) for output in delta.outputs)
                if not unlike[0]._replica.condition.is_stopping:
                    unlike[0]._replica.hand_back()
        assert 0 < heard < 400
        await asyncio.gather(*(replica.connect(gateway._connections.address) for replica in unlike))
        async with asyncio.timeout(SECONDS):
            while len(reports := await gateway.engines()) < 2:
                await asyncio.sleep(0.01)
        assert len({report["fingerprint"] for report in reports}) == 2
        assert {report["arithmetic"]["dtype"] for report in reports} == {"bfloat16", "float32"}
        for report in reports:
            assert fingerprint(report["arithmetic"]) == report["fingerprint"]
    finally:
        await gateway.close()
