"""The ways to choose that ours is measured beside are those of gateways that do not know of each
other.
"""

import pytest

from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.benchmarks.routing.gateways import Gateway

NUM_ENGINES, NUM_GATEWAYS = 100, 10


@pytest.mark.parametrize("kind", ["power of two", "round robin"])
async def test_gateways_do_not_choose_in_step(kind: str) -> None:
    gateways = [Gateway(number, NUM_ENGINES, kind) for number in range(NUM_GATEWAYS)]
    firsts = [gateway.choose(Request("a", "text", SamplingParams()))[0] for gateway in gateways]
    assert len(set(firsts)) > NUM_GATEWAYS // 2, f"all at once: {firsts}"
