"""A model of the hub on two ranks of a node."""

from pathlib import Path

import pytest

from cluster.launch.ray_cluster import ray_cluster
from cluster.llm import LLM
from engine.sampling_params import SamplingParams
from tests.cluster.download.hub_server import small_hub
from tests.end_to_end.chaos.app import DEMO

NAME, WEIGHTS = "squadron/demo", "model.safetensors"
HEADER_BYTES = 1 << 18  # that are read for a plan


@pytest.mark.long  # else: tests/cluster/workers/test_shares.py
def test_it_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=32)
    engine = {"device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 16 << 20, "download_dir": str(tmp_path)}
    with small_hub() as hub:
        hub.add(NAME, DEMO)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with ray_cluster(num_workers=3), LLM(model=NAME, tensor_parallel_size=2, **engine) as llm:
            (output,) = llm.generate(["What is 17 + 25?"], params, use_tqdm=False)
        with LLM(model=str(DEMO), **engine | {"download_dir": None}) as llm:
            (expected,) = llm.generate(["What is 17 + 25?"], params, use_tqdm=False)
        assert output.outputs == expected.outputs
        assert hub.sent[WEIGHTS] == HEADER_BYTES + (DEMO / WEIGHTS).stat().st_size
