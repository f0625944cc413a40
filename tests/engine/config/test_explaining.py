"""A key or a value that cannot be is refused in a sentence, which names what would do."""

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_parallel_sise": 2}, "did you mean 'tensor_parallel_size'"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"dtype": "int3"}, "dtype='int3'"),
        ({"quantization": "int3"}, "quantization='int3': Input should be 'int8', 'int4' or 'fp8'"),
        ({"quantization": "awq"}, "quantization='awq': a checkpoint in this format is served without this option"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": float("inf")}, "kv_offloading_path_size=inf"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": 1e300}, "kv_offloading_path_size=1e+300: Input"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": 1e-9}, "greater than or equal to 0.0009765625"),
        ({"kv_offloading_size": 1e-9}, "kv_offloading_size=1e-09: Input should be greater than or equal to"),
        ({"kv_offloading_size": 8 << 30}, "kv_offloading_size=8589934592: Input should be less than or equal to 65536"),
        ({"swap_space": 4 << 30}, "swap_space=4294967296: Input should be less than or equal to 65536"),
        ({"kv_peer_secret": 1234}, "kv_peer_secret: Input should be a valid string"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)


def test_a_model_is_required():
    with pytest.raises(InvalidConfig, match="model is required"):
        EngineConfig.create()
