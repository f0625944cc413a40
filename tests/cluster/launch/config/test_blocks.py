"""How a model's engines are told who computes prompts and who answers, to whom they leave blocks,
and what all of a cluster know.
"""

import pytest
import ray

from cluster.launch.config.blocks import divided, leaving, model_secret
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from engine.config import EngineConfig
from engine.offload.shared_folder import is_shared

MODEL = {"model": str(ROOT / "configs" / "demo")}


def test_both_have_a_folder_in_shared_memory_that_no_other_application_has() -> None:
    engine = EngineConfig.create(**MODEL)
    answering, computing = divided(engine, 0.5, "token", "secret")
    assert (answering.kv_role, computing.kv_role) == ("consumer", "producer")
    assert answering.kv_offloading_path == computing.kv_offloading_path and is_shared(
        answering.kv_offloading_path or ""
    )
    assert answering.kv_offloading_path_size == computing.kv_offloading_path_size == 0.5
    other = divided(engine, 0.5, "other token", "secret")[0]
    assert other.kv_offloading_path != answering.kv_offloading_path
    assert answering.kv_peer_secret == computing.kv_peer_secret == "secret"
    assert "secret=" not in f"{answering!r} {answering}", "no log shows it"
    named = engine.model_copy(update={"served_model_name": "another"})
    assert divided(named, 0.5, "token", "secret")[0].kv_offloading_path != answering.kv_offloading_path


def test_a_folder_of_theirs_is_used_for_both() -> None:
    engine = EngineConfig.create(**MODEL, kv_offloading_path="/kept")
    answering, computing = divided(engine, 0.5, "token", "secret")
    assert answering == engine
    assert computing == engine.model_copy(update={"kv_role": "producer"})


def test_engines_that_end_leave_their_blocks_to_others() -> None:
    engine = EngineConfig.create(**MODEL)
    told = leaving(engine, 0.5, "secret")
    assert told.kv_leaving_size == 0.5 and told.kv_peer_secret == "secret"
    answering, computing = divided(told, 1.0, "token", "secret")
    assert (answering.kv_leaving_size, computing.kv_leaving_size) == (0.5, 0)
    assert leaving(engine, 0, "secret") == engine


@pytest.mark.parametrize(
    "options",
    [{"enable_prefix_caching": False}, {"swap_space": 0}, {"speculative_config": {"model": MODEL["model"]}}],
    ids=["no prefix cache", "no host memory", "a draft model"],
)
def test_blocks_that_cannot_be_moved_are_computed_again(options: dict[str, object]) -> None:
    engine = EngineConfig.create(**MODEL, **options)
    assert leaving(engine, 0.5, "secret") == engine


@ray.remote(num_cpus=0)
def secret_of_a_process() -> str:
    """As Serve builds an application: in a task."""
    return model_secret("demo")


def test_processes_that_build_a_model_after_each_other_tell_its_engines_the_same_secret() -> None:
    """In one cluster: those of another one do not know it."""
    alone = model_secret("demo")
    assert model_secret("demo") == alone != model_secret("other")
    found = []
    for _ in range(2):
        with ray_cluster(num_workers=1):
            ours = model_secret("demo")
            assert ours == ray.get(secret_of_a_process.remote()) and ours != model_secret("other")
            found.append(ours)
    assert len({alone, *found}) == 3
