"""What can be checked of the files of `ray up` without a cluster: Ray's schema, what they name
exists, they never run open, and their GCS is kept.
"""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster.launch.node.environment import RAY_ENVIRONMENT
from tests.end_to_end.ray_up.lab import REPOSITORY

NAMES = ("on-premise", "aws", "gcp")
ENVIRONMENT = REPOSITORY / "configs/cluster/environment.sh"
ON_NODE = "~/squadron/"


@pytest.fixture(params=NAMES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs" / "cluster" / f"{name}.yaml").read_text())
    return loaded


def test_ray_accepts_it(config: dict[str, Any]) -> None:
    validate_config(prepare_config(config))


def test_an_unknown_key_is_not_accepted(config: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError, match="'worker_ips' was unexpected"):
        validate_config(prepare_config(config | {"worker_ips": []}))


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_clouds_differ_from_machines_of_ones_own_in_nothing_else(name: str) -> None:
    here, there = load("on-premise"), load(name)
    for key in ("file_mounts", "rsync_exclude", "head_start_ray_commands", "worker_start_ray_commands"):
        assert there[key] == here[key], key
    assert [command for command in here["setup_commands"] if command not in there["setup_commands"]] == []
    prepared = prepare_config(there)
    assert prepared["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert prepared["available_node_types"]["gpu-workers"]["labels"] == {"market-type": "on-demand"}


def test_all_that_is_installed_is_pinned(config: dict[str, Any]) -> None:
    commands = config["setup_commands"] + config.get("head_setup_commands", [])
    installing = [command for command in commands if "pip install" in command]
    assert installing and all("--constraint ~/squadron/constraints.txt" in command for command in installing)
    pins = (REPOSITORY / "constraints.txt").read_text()
    for command in config.get("head_setup_commands", []):
        assert f"\n{command.split()[-1]}==" in pins


def test_the_heads_gcs_is_kept(config: dict[str, Any]) -> None:
    """What it stores is that of this start, and its keeper comes after it, at its port."""
    stop, start, _ = config["head_start_ray_commands"]
    assert stop.endswith('ray stop && rm -rf "$RAY_gcs_storage_path"')
    keeper = REPOSITORY / "configs" / "cluster" / "keep_gcs.sh"
    assert start.endswith(f"{ON_NODE}configs/cluster/keep_gcs.sh") and keeper.stat().st_mode & 0o111
    assert "--port=6379 " in start and "cluster.launch.node.gcs_keeper --port 6379 " in keeper.read_text()
    environment = ENVIRONMENT.read_text()
    assert "export RAY_gcs_storage=rocksdb\n" in environment and "export RAY_gcs_storage_path=" in environment


def test_what_it_copies_exists(config: dict[str, Any]) -> None:
    mounts = {node: here for node, here in config["file_mounts"].items() if node.startswith(ON_NODE)}
    assert mounts == {ON_NODE + here: here for here in mounts.values()}
    assert [here for here in mounts.values() if not (REPOSITORY / here).exists()] == []


def test_what_an_installation_needs_is_copied(config: dict[str, Any]) -> None:
    needed = [*REPOSITORY.glob("*/__init__.py"), REPOSITORY / "pyproject.toml", REPOSITORY / "setup.py"]
    names = {path.relative_to(REPOSITORY).parts[0] for path in needed} - {"tests"}
    assert names <= set(config["file_mounts"].values())


def test_what_its_commands_name_is_copied(config: dict[str, Any]) -> None:
    copied = [Path(node) for node in config["file_mounts"]]
    commands = " ".join(config["head_start_ray_commands"] + config["worker_start_ray_commands"])
    named = {Path(path) for path in re.findall(rf"{ON_NODE}[\w./-]+", commands)}
    assert Path(f"{ON_NODE}configs/serve/demo.yaml") in named
    for path in named:
        assert any(path.is_relative_to(folder) for folder in copied)
        assert (REPOSITORY / path.relative_to(ON_NODE)).is_file()


def test_ray_is_never_started_open(config: dict[str, Any]) -> None:
    assert "~/.ray/auth_token" in config["file_mounts"]
    for command in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        assert command.startswith(f"source {ON_NODE}configs/cluster/environment.sh && ")
    assert "export RAY_AUTH_MODE=token\n" in ENVIRONMENT.read_text()


@pytest.mark.parametrize("name", ["RAY_worker_niceness", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "MALLOC_ARENA_MAX"])
def test_ray_runs_under_what_it_runs_under_on_one_machine(name: str) -> None:
    assert f"export {name}={RAY_ENVIRONMENT[name]}\n" in ENVIRONMENT.read_text()
