"""The commands, and a worker, with a name of the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.download.models import pinned
from cluster.workers.processes.actor import WorkerActor
from engine.config import EngineConfig
from tests.cluster.commands.failing import fails
from tests.cluster.download.conftest import DEMO, NAME
from tests.cluster.download.hub_server import SmallHub

WEIGHTS = "model.safetensors"


def test_an_impossible_configuration_is_refused_before_weights_are_fetched(
    hub: SmallHub, config: EngineConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "serve"):
        line = fails(capsys, command, NAME, "-tp", "3", "--download-dir", str(config.download_dir))
        assert line.endswith("this model can be cut into 1, 2 or 4 ranks")
    assert hub.sent[WEIGHTS] == 1 << 18


def test_a_dtype_that_no_device_here_computes_is_refused_before_weights_are_fetched(
    hub: SmallHub, config: EngineConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints in AWQ and GPTQ are published in float16, and the device is found out."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = json.loads((DEMO / "config.json").read_text()) | {"dtype": "float16"}
    hub.add(NAME, DEMO, **{"config.json": json.dumps(said).encode()})
    for command in ("plan", "serve"):
        assert main([command, NAME, "--download-dir", str(config.download_dir)]) == 2
        line = capsys.readouterr().err
        assert "dtype=float16 (the checkpoint's) is not computed on CPU; --dtype bfloat16" in line
    assert hub.sent[WEIGHTS] == 1 << 18
    main(["plan", NAME, "--download-dir", str(config.download_dir), "--dtype", "bfloat16"])


def test_a_plan(hub: SmallHub, config: EngineConfig, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", NAME, "--download-dir", str(config.download_dir), "--revision", "main"])
    named = capsys.readouterr().out
    main(["plan", str(DEMO)])
    assert named.splitlines()[:4] == capsys.readouterr().out.splitlines()[:4]


def test_an_answer(hub: SmallHub, config: EngineConfig) -> None:
    command = [sys.executable, "-m", "cluster.cli", "generate", NAME, "--prompt", "What is 17 + 25?"]
    options = ["--download-dir", str(config.download_dir), "--num-threads", "1", "--kv-cache-memory-bytes", "16MiB"]
    done = subprocess.run([*command, *options], env=os.environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("42\n", 0)
    assert f"Fetching {NAME} at " in done.stderr


def test_a_worker_fetches_on_its_own_node(hub: SmallHub, config: EngineConfig, tmp_path: Path) -> None:
    """Whatever folder the driver read the model's description from."""
    of_driver = pinned(config).model_copy(update={"model": "/a/folder/of/the/driver", "device": "cpu"})
    WorkerActor().offer(of_driver.model_copy(update={"download_dir": str(tmp_path / "of the worker")}))
    (weights,) = (tmp_path / "of the worker").glob(f"models--squadron--demo/snapshots/*/{WEIGHTS}")
    assert weights.read_bytes() == (DEMO / WEIGHTS).read_bytes()
