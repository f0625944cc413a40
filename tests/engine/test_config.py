"""Configuration is refused in a sentence that names the field, the value and what would do."""

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
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "max_num_seqs=16"),
        ({"speculative_config": {"method": "ngrams"}}, "speculative_config.method='ngrams': Input should be 'ngram'"),
        ({"speculative_config": {"num_speculative_token": 3}}, "did you mean 'speculative_config.num_speculative_tok"),
        ({"speculative_config": {"num_speculative_tokens": 32}}, "speculative_config.num_speculative_tokens=32"),
        ({"speculative_config": {"prompt_lookup_min": 9}}, "prompt_lookup_min=9 is above prompt_lookup_max=8"),
        ({"speculative_config": "ngram"}, "speculative_config='ngram': Input should be a valid dict"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)


def test_a_model_is_required():
    with pytest.raises(InvalidConfig, match="model is required"):
        EngineConfig.create()


@pytest.mark.parametrize(
    ("backend", "tensor_parallel_size", "expected"),
    [("auto", 1, True), ("auto", 2, False), ("local", 1, True), ("local", 2, True), ("ray", 1, False)],
)
def test_one_rank_runs_in_process_unless_ray_is_asked_for(
    backend: str, tensor_parallel_size: int, expected: bool
) -> None:
    config = EngineConfig.create(
        model="x", distributed_executor_backend=backend, tensor_parallel_size=tensor_parallel_size
    )
    assert config.runs_in_process is expected
