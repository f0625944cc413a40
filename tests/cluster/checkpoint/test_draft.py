"""A draft model is checked as the model is, before anything starts, and its memory is planned."""

import json
from pathlib import Path

import pytest

from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.size import Plan
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.worker import Worker
from tests.cluster.checkpoint.damaged import edit
from tests.engine.support.draft_models import truncated
from tests.engine.support.workloads import DEMO


def plan_of(draft: str | None, **arguments: object) -> Plan:
    speculation = {} if draft is None else {"speculative_config": {"model": draft}}
    return make_plan(EngineConfig.create(model=DEMO, **speculation, **arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(truncated(tmp_path / "draft"))


def test_its_weights_and_its_cache_are_counted(folder: Path) -> None:
    plain, plan = plan_of(None), plan_of(str(folder))
    assert plan.weight_bytes == plain.weight_bytes + plan.draft_bytes
    assert 0.5 < plan.draft_bytes / plain.weight_bytes < 1
    assert plan.cache_bytes_per_token * 4 == plain.cache_bytes_per_token * (4 + 3)
    assert "draft model           " in str(plan) and "draft" not in str(plain)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_a_rank_holds_all_of_it_whatever_the_sharding(folder: Path, tp: int, pp: int) -> None:
    own = plan_of(str(folder), tensor_parallel_size=tp, pipeline_parallel_size=pp)
    without = plan_of(None, tensor_parallel_size=tp, pipeline_parallel_size=pp)
    assert own.cache_bytes_per_token - without.cache_bytes_per_token == 3 * 2 * 2 * 64 * 2
    assert own.draft_bytes == plan_of(str(folder)).draft_bytes


def test_a_worker_has_as_many_blocks_as_planned(folder: Path) -> None:
    room = 1 << 24
    config = EngineConfig.create(
        model=DEMO, kv_cache_memory_bytes=room, max_model_len=1024, speculative_config={"model": str(folder)}
    )
    (num_gpu_blocks, _) = Worker(config).determine_num_available_blocks()
    assert num_gpu_blocks == room // (16 * make_plan(config).cache_bytes_per_token)


def test_another_tokenizer_is_refused_with_both_named(folder: Path) -> None:
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    told["model"]["vocab"]["a"], told["model"]["vocab"]["b"] = told["model"]["vocab"]["b"], told["model"]["vocab"]["a"]
    path.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(InvalidConfig, match=rf"speculative_config.model={folder}: token .* in .*demo and"):
        plan_of(str(folder))


def test_a_vocabulary_may_be_padded_but_not_cut(tmp_path: Path) -> None:
    assert plan_of(truncated(tmp_path / "padded", vocab_size=832)).draft_bytes > 0
    with pytest.raises(InvalidConfig, match="vocab_size=700, and its tokenizer has 768 ids"):
        plan_of(truncated(tmp_path / "cut", vocab_size=700))


def test_damage_is_refused_naming_the_draft(folder: Path) -> None:
    edit(folder, num_hidden_layers=2, layer_types=2 * ["full_attention"])
    with pytest.raises(InvalidConfig, match=rf"speculative_config.model={folder}: .*model.layers.2"):
        plan_of(str(folder))


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=rf"speculative_config.model={tmp_path / 'none'}"):
        plan_of(str(tmp_path / "none"))
