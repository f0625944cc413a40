"""What Ray promises on a cluster of this machine alone."""

import os
import subprocess
import sys
from pathlib import Path

from ray.util.placement_group import placement_group

from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from cluster.workers.placement import GATEWAY_CPUS, make_bundles
from tests.cluster.workers.ranks import make_config

SECONDS = 120


def test_many_engines_and_gateways_have_room_on_few_cores() -> None:
    code = f"from {__name__} import place_all; place_all()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_no_part_in_what_another_one_has_stored(tmp_path: Path) -> None:
    """The environment of a cluster's node names where that cluster's GCS stores what it knows."""
    code = f"from {__name__} import tell_sessions; tell_sessions()"
    stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "gcs")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | stored, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "gcs").exists()


def tell_sessions() -> None:
    name, sessions = "RAY_gcs_storage", set()
    for _ in range(2):
        with ray_cluster() as cluster:
            sessions.add(cluster.logs.parent.name)
            assert os.environ[name] == "rocksdb"
    assert len(sessions) == 2


def place_all() -> None:
    engine = make_bundles(make_config(tensor_parallel_size=2))
    num_engines = num_gateways = 4 * (os.cpu_count() or 1)
    with ray_cluster(num_workers=2 * num_engines, num_gateways=num_gateways):
        groups = [placement_group(engine["placement_group_bundles"]) for _ in range(num_engines)]
        gateways = [placement_group([{"CPU": GATEWAY_CPUS}]) for _ in range(num_gateways)]
        assert all(group.wait(SECONDS) for group in (*groups, *gateways))
