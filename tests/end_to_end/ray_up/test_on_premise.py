"""What can be checked of configs/cluster/on-premise.yaml without a cluster: what it names exists,
it never runs open.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster.launch.node.environment import RAY_ENVIRONMENT
from tests.end_to_end.ray_up.lab import REPOSITORY

ON_PREMISE = REPOSITORY / "configs/cluster/on-premise.yaml"
ENVIRONMENT = REPOSITORY / "configs/cluster/environment.sh"
ON_NODE = "~/squadron/"


@pytest.fixture
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(ON_PREMISE.read_text())
    return loaded


def test_ray_accepts_it(config: dict[str, Any]) -> None:
    validate_config(prepare_config(config))


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
