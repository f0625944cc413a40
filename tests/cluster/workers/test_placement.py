"""Where ranks are placed, and what is said if there is no room."""

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.workers.placement import make_bundles, place
from engine.errors import InvalidConfig
from tests.cluster.workers.ranks import make_config

pytestmark = pytest.mark.usefixtures("cluster")


def test_no_room_in_the_cluster() -> None:
    with pytest.raises(InvalidConfig, match=r"no room for \[\{'CPU': 6.0\}\]"):
        place(make_config(tensor_parallel_size=2), cpus_per_worker=3.0, timeout=1)


def test_stages_are_bundles_and_a_replica_uses_its_own() -> None:
    config = make_config(tensor_parallel_size=2, pipeline_parallel_size=2)
    options = make_bundles(config)
    assert options["placement_group_bundles"] == [{"CPU": 0.25}, {"CPU": 0.5}, {"CPU": 0.5}]
    group = placement_group(options["placement_group_bundles"], strategy=options["placement_group_strategy"])
    strategy = PlacementGroupSchedulingStrategy(group, 0)

    @ray.remote(num_cpus=0.25, scheduling_strategy=strategy)
    def place_in_replica() -> tuple[bool, list[int], str]:
        placement = place(config)
        return placement.is_own, placement.bundles, placement.group.id.hex()

    assert ray.get(place_in_replica.remote()) == (False, [1, 1, 2, 2], group.id.hex())
    remove_placement_group(group)


def test_a_gpu_for_each_worker() -> None:
    options = make_bundles(make_config(device="cuda", tensor_parallel_size=2, ops_backend="auto"))
    assert options["placement_group_bundles"] == [{"CPU": 0.25}, {"CPU": 0.5, "GPU": 2.0}]


def test_one_rank_in_process_needs_no_bundles() -> None:
    assert make_bundles(make_config()) == {"ray_actor_options": {"num_cpus": 0.25, "num_gpus": 0}}
