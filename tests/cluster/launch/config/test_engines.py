"""How a model's engines are told who computes prompts and who answers."""

from cluster.launch.config.engines import divided
from cluster.launch.packages import ROOT
from engine.config import EngineConfig
from engine.offload.shared_folder import is_shared

MODEL = {"model": str(ROOT / "configs" / "demo")}


def test_both_have_a_folder_in_shared_memory_that_no_other_application_has() -> None:
    engine = EngineConfig.create(**MODEL)
    answering, computing = divided(engine, 0.5, "token")
    assert (answering.kv_role, computing.kv_role) == ("consumer", "producer")
    assert answering.kv_offloading_path == computing.kv_offloading_path and is_shared(
        answering.kv_offloading_path or ""
    )
    assert answering.kv_offloading_path_size == computing.kv_offloading_path_size == 0.5
    other = divided(engine, 0.5, "other token")[0]
    assert other.kv_offloading_path != answering.kv_offloading_path
    secret = answering.kv_peer_secret
    assert secret == computing.kv_peer_secret and secret not in (None, other.kv_peer_secret, "token")
    assert f"{secret}" not in f"{answering!r} {answering}", "no log shows it"
    named = engine.model_copy(update={"served_model_name": "another"})
    assert divided(named, 0.5, "token")[0].kv_offloading_path != answering.kv_offloading_path


def test_a_folder_of_theirs_is_used_for_both() -> None:
    engine = EngineConfig.create(**MODEL, kv_offloading_path="/kept")
    answering, computing = divided(engine, 0.5, "token")
    assert answering == engine
    assert computing == engine.model_copy(update={"kv_role": "producer"})
