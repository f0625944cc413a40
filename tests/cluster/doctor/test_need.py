"""What files of configurations ask for."""

from pathlib import Path

import pytest
import yaml

from cluster.commands.options import read_config_file
from cluster.doctor.need import http_port, needs_of_serve_file
from cluster.launch.machine import checked_port
from cluster.launch.packages import ROOT
from cluster.workers.placement import bundles_of
from engine.errors import InvalidConfig
from tests.cluster.doctor.made import need

FILES = sorted((ROOT / "configs" / "serve").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_of_serve_is_understood(path: Path) -> None:
    values = read_config_file(str(path))
    needs = needs_of_serve_file(values, str(path))
    assert http_port(values) == 8000
    assert all(need.num_engines >= 1 and need.plan.weight_bytes > 0 for need in needs)
    args = values["applications"][0]["args"]
    assert len(needs) == len(args.get("models", [args]))


def test_two_engines_of_two_stages() -> None:
    path = str(ROOT / "configs" / "serve" / "two-engines.yaml")
    (need,) = needs_of_serve_file(read_config_file(path), path)
    assert (need.num_engines, need.num_ranks) == (2, 4)
    assert str(need) == "demo: 2 engine(s) of 2 rank(s)"


def test_one_rank_on_a_cpu_has_a_process_of_its_own() -> None:
    assert [len(bundles_of(need(device=device).settled().config)) for device in ("cpu", "cuda")] == [2, 1]


def test_a_file_of_another_application() -> None:
    other = yaml.safe_load("applications: [{name: a, import_path: 'other:app'}]")
    with pytest.raises(InvalidConfig, match=r"other.yaml has no application whose import_path is cluster.launch:build"):
        needs_of_serve_file(other, "other.yaml")
    values = {"applications": [{"import_path": "cluster.launch:build_app", "args": ["engine"]}]}
    with pytest.raises(InvalidConfig, match=r"other.yaml: args must map names of options to values, got a list"):
        needs_of_serve_file(values, "other.yaml")


@pytest.mark.parametrize("port", ["x", "nine", 0, -1, 65536, 99999999, [1], 1.5])
def test_no_port(port: object) -> None:
    with pytest.raises(InvalidConfig, match=r"port=.* is not a number from 1 to 65535"):
        checked_port(http_port({"http_options": {"port": port}}))
