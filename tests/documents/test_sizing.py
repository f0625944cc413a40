"""The arithmetic of the checklist for production, by the planner's own functions."""

import json
import re
from pathlib import Path

import pytest

from cluster.checkpoint.size import Plan, size_up
from cluster.doctor.checks.limits import LEAST_MEMORY, LEAST_SHM, LEAST_SHM_WITH_GPUS
from cluster.memory import human
from engine.config import EngineConfig
from tests.documents.snippets import ROOT

PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
GIB = 1 << 30
# Qwen2.5-7B-Instruct's, as far as the planner reads it.
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
DEVICE_GIB, STEP_GIB, TOKENS_OF_A_REQUEST = 80, 4, 2000  # the page's assumptions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def plan(model: Path, **options: int) -> Plan:
    return size_up(EngineConfig.create(model=str(model), device="cuda", **options))


def shown(row: str) -> str:
    """The last cell of the table's row that begins so."""
    (line,) = re.findall(rf"^\| {re.escape(row)} \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    return line


def test_each_row_is_what_the_planner_says(model: Path) -> None:
    of_one = plan(model)
    config = EngineConfig.create(model=str(model))
    weights = of_one.weight_bytes / GIB
    ours = config.gpu_memory_utilization * DEVICE_GIB
    cache = ours - weights - STEP_GIB
    tokens = int(cache * GIB / of_one.cache_bytes_per_token)
    assert shown("weights") == f"{weights:.2f} GiB"
    assert shown("cache of a token") == f"{of_one.cache_bytes_per_token // 1024} KiB"
    assert shown("for Squadron") == f"{ours:.1f} GiB"
    assert shown("for the largest step") == f"{STEP_GIB} GiB"
    assert shown("cache") == f"{cache:.2f} GiB"
    assert shown("tokens in it") == f"{tokens:,}"
    assert f"{tokens:,} / {TOKENS_OF_A_REQUEST:,} tokens" in PAGE
    assert shown("requests at once") == str(tokens // TOKENS_OF_A_REQUEST)
    assert shown("seats") == str(config.max_num_seqs)


def test_the_longest_request_and_two_gpus(model: Path) -> None:
    prose = " ".join(PAGE.split())
    of_one, of_two = plan(model), plan(model, tensor_parallel_size=2)
    longest = of_one.max_model_len * of_one.cache_bytes_per_token / GIB
    told = f"With {of_one.max_model_len:,} tokens (`--max-model-len`) the longest request takes {longest:g} GiB"
    assert told in prose
    least = f"{human(LEAST_MEMORY)} of memory before any weights, and for {human(LEAST_SHM)} of `/dev/shm`"
    assert f"{least}, with GPUs {human(LEAST_SHM_WITH_GPUS)}." in prose
    sizes = f"{of_two.weight_bytes / GIB:.4g} GiB and {of_two.cache_bytes_per_token // 1024} KiB"
    assert f"a rank has half of the weights and of a token's cache: {sizes}" in prose
