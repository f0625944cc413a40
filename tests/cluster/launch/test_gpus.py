"""Engines on GPUs that are only said to be there: how many may be, and where they are placed."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from cluster.launch.app import build_app
from cluster.launch.gpus import settled
from cluster.launch.packages import ROOT
from cluster.workers.placement import give_back, make_bundles, place
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.several_nodes import several_nodes

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

GPUS: dict[str, Any] = {"model": "configs/demo", "device": "cuda", "tensor_parallel_size": 2}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    nodes = [
        {"num_cpus": 2},
        {"num_cpus": 2, "num_gpus": 4, "resources": {"accelerator_type:A100": 1}, "labels": {"region": "us"}},
        {"num_cpus": 2, "num_gpus": 2, "resources": {"accelerator_type:H100": 1}, "labels": {"region": "eu"}},
    ]
    with several_nodes(nodes) as cluster:
        yield cluster


def node_with(label: str) -> str:
    return next(node["NodeID"] for node in ray.nodes() if node["Labels"].get("region") == label)


def nodes_of(**changes: Any) -> set[str]:
    """Where the stages of an engine are placed."""
    placement = place(EngineConfig.create(**(GPUS | {"model": "demo"} | changes)), timeout=60)
    try:
        return set(placement_group_table(placement.group)["bundles_to_node_id"].values())
    finally:
        give_back(placement)


def test_as_many_engines_as_there_are_gpus_for() -> None:
    build_app({"engine": GPUS, "num_engines": 3})
    with pytest.raises(
        InvalidConfig,
        match=r"^4 engine\(s\) of demo × 2: 8 GPU\(s\) are needed, and the cluster has 6; lower num_engines",
    ):
        build_app({"engine": GPUS, "num_engines": 4})


@pytest.mark.parametrize(
    "changes, runs_in_process",
    [
        ({"device": "cpu"}, False),
        ({"device": "cpu", "distributed_executor_backend": "local"}, True),
        ({"device": "cuda"}, True),
        ({"device": "auto"}, True),  # there are GPUs
    ],
)
def test_one_rank_that_serves_on_the_cpu_has_a_process_of_its_own(
    changes: dict[str, str], runs_in_process: bool
) -> None:
    assert settled(EngineConfig.create(model="demo", **changes), None).runs_in_process is runs_in_process


def test_nodes_that_are_still_to_come_are_believed() -> None:
    build_app({"engine": GPUS, "num_engines": 4, "max_gpus": 8})
    with pytest.raises(InvalidConfig, match=r"10 GPU\(s\) are needed, and the cluster has 6 and max_gpus=8"):
        build_app({"engine": GPUS, "num_engines": 5, "max_gpus": 8})


def test_all_models_count_and_scaled_ones_with_their_least() -> None:
    models = [{"engine": GPUS | {"served_model_name": name}, "num_engines": 2} for name in "ab"]
    with pytest.raises(InvalidConfig, match=r"^2 engine\(s\) of a × 2, 2 engine\(s\) of b × 2: 8 GPU"):
        build_app({"models": models})
    build_app({"engine": GPUS, "autoscaling": {"min_engines": 3, "max_engines": 9}})
    with pytest.raises(InvalidConfig, match=r"8 GPU\(s\) are needed"):
        build_app({"engine": GPUS, "autoscaling": {"min_engines": 4, "max_engines": 9}})


@pytest.mark.parametrize(
    ("wish", "number", "lacking"),
    [
        (
            {"tensor_parallel_size": 4, "node_labels": {"region": "eu"}},
            1,
            r"^1 engine\(s\) of demo need 1 place\(s\) of 4 GPU\(s\) on one node with .*, and the cluster has 0;",
        ),
        (
            {"accelerator_type": "H100"},
            2,
            r"need 2 place\(s\) of 2 GPU\(s\) on one node with accelerator_type=H100, and .* 1;",
        ),
        ({"accelerator_type": "L4"}, 1, r"with accelerator_type=L4, and the cluster has 0; .* set max_gpus$"),
        ({"node_labels": {"region": "eu"}}, 2, r"with node_labels={'region': 'eu'}, and the cluster has 1;"),
    ],
)
def test_gpus_count_where_an_engine_may_have_them(wish: dict[str, Any], number: int, lacking: str) -> None:
    """Otherwise it would wait for a place for ever."""
    with pytest.raises(InvalidConfig, match=lacking):
        build_app({"engine": GPUS | wish, "num_engines": number})
    build_app({"engine": GPUS | wish, "num_engines": number, "max_gpus": 12})  # others are to come


def test_the_device_is_settled_once() -> None:
    """An engine that is started again while a node is away must not become one on CPUs."""

    def device_of(**changes: Any) -> str:
        args = {"engine": {"model": "configs/demo", "tensor_parallel_size": 4, "pipeline_parallel_size": 2}} | changes
        engine = build_app(args)._bound_deployment.init_args[0][0]._bound_deployment
        config = next(argument for argument in engine.init_args if isinstance(argument, EngineConfig))
        return config.device

    assert (device_of(), device_of(max_gpus=7), device_of(max_gpus=8)) == ("cpu", "cpu", "cuda")
    assert device_of(engine={"model": "configs/demo"}) == "cuda"


def test_cpus_need_none() -> None:
    build_app({"engine": GPUS | {"device": "cpu"}, "num_engines": 40})


@pytest.mark.parametrize(
    ("wish", "region"),
    [
        ({"accelerator_type": "H100"}, "eu"),
        ({"accelerator_type": "A100"}, "us"),
        ({"node_labels": {"region": "eu"}}, "eu"),
        ({"node_labels": {"region": "us"}}, "us"),
    ],
)
def test_ranks_are_placed_on_the_kind_and_the_labels_asked_for(wish: dict[str, Any], region: str) -> None:
    assert nodes_of(**wish) == {node_with(region)}


def test_there_is_no_room_on_a_kind_that_no_node_has() -> None:
    config = EngineConfig.create(**(GPUS | {"model": "demo", "accelerator_type": "L4"}))
    with pytest.raises(InvalidConfig, match=r"no room for .*accelerator_type:L4"):
        place(config, timeout=1)


def test_a_replica_owns_the_same_bundles_as_its_workers_look_for() -> None:
    """Of the file of Serve: they reach the group that Serve makes for each replica."""
    wish = {"accelerator_type": "H100", "node_labels": {"region": "eu"}, "pipeline_parallel_size": 2}
    engine = build_app({"engine": GPUS | wish, "max_gpus": 8})._bound_deployment.init_args[0][0]._bound_deployment
    config = EngineConfig.create(**(GPUS | wish))
    stage = {"CPU": 0.5, "GPU": 2.0, "accelerator_type:H100": 0.001}
    replica = engine._replica_config
    assert replica.placement_group_bundles == [{"CPU": 0.25}, stage, stage]
    assert replica.placement_group_bundle_label_selector == [{"region": "eu"}] * 3
    assert make_bundles(config)["placement_group_bundles"] == replica.placement_group_bundles


def test_an_engine_without_workers_is_placed_likewise() -> None:
    wish = {"accelerator_type": "H100", "node_labels": {"region": "eu"}, "tensor_parallel_size": 1}
    engine = build_app({"engine": GPUS | wish})._bound_deployment.init_args[0][0]._bound_deployment
    options = engine.ray_actor_options
    assert (options["num_gpus"], options["accelerator_type"], options["label_selector"]) == (
        *(1, "H100"),
        {"region": "eu"},
    )


def test_another_patch_level_of_ray_is_refused_with_the_remedy(cluster: Cluster) -> None:
    """By Ray; where users meet it is what we say about it."""
    program = "import ray, sys; ray.__version__ = '2.60.99'; from cluster.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "collect-env", "--ray-address", cluster.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("squadron collect-env: "))
    assert f"was started with: Ray: {ray.__version__} Python: " in line and "Ray: 2.60.99" in line
    assert "Ray refuses another patch level of itself or of Python" in line and "--constraint constraints.txt" in line
