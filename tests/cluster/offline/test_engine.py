"""An engine of one's own, from its first request to its end."""

import pytest

from cluster.offline.engine import OfflineEngine
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.outputs import Accumulator
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.engine.support.demo import DEMO

CONFIG = {"model": str(DEMO), "device": "cpu", "kv_cache_memory_bytes": 16 << 20}


def test_outputs_come_until_the_request_has_ended() -> None:
    engine = OfflineEngine(EngineConfig.create(**CONFIG))
    try:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        answer = Accumulator()
        with engine.listening() as next_outputs:
            engine.add_request(Request("a", "one two three", params))
            while answer.last is None or not answer.last.finished:
                for delta in next_outputs():
                    answer.add(delta)
        assert answer.last.request_id == "a" and len(answer.last.outputs[0].token_ids) == 5
    finally:
        engine.close()
        engine.close()


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=3 does not divide"):
        OfflineEngine(EngineConfig.create(**CONFIG, tensor_parallel_size=3))
