"""Lines of batches, as requests of the key that they came with."""

import json

from cluster.api.keys.key_ring import KeyRing
from cluster.gateway.ask import PRIORITY, WEIGHT, as_batch, ask
from engine.request import Request
from engine.sampling_params import SamplingParams


def test_a_batch_shares_the_prefixes_of_its_key_and_not_its_turn() -> None:
    ring = KeyRing(["secret"])
    key = ring.named(ring.names[0])
    assert key is not None
    request = Request("r", [1], SamplingParams(), cache_salt="s")
    now, later = key.own(request), as_batch(key).own(request)
    assert later.cache_salt == now.cache_salt
    assert later.share.key == f"{now.share.key}/batch"
    assert (later.priority, later.share.weight) == (PRIORITY, now.share.weight * WEIGHT)
    assert not as_batch(key).has_limits


async def test_a_key_that_is_gone_is_named() -> None:
    async def app(*_: object) -> None:
        raise AssertionError("nothing is asked")

    status, headers, body = await ask(app, "/v1/completions", b"{}", KeyRing(), "old")
    assert (status, headers) == (401, {})
    error = json.loads(body)["error"]
    assert (error["code"], error["message"]) == ("invalid_api_key", "There is no API key 'old' any more")
