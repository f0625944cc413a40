"""Downloads that run at once, to a disk that has room for each of them but not for both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.download.models import all_fetched, fetched
from cluster.launch.packages import ROOT
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.download.conftest import DEMO, NAME, resize
from tests.cluster.download.hub_server import SmallHub
from tests.end_to_end.conftest import free_port

OTHER = "squadron/other"
WEIGHTS = "model.safetensors"
FETCH = """
import sys
from cluster.cli import main
from cluster.download.models import fetched
from engine.config import EngineConfig
fetched(EngineConfig.create(model=sys.argv[1], download_dir=sys.argv[2]))
"""
BOTH = r"Models take 12\.\d+ MiB more in \S*/disk \({} at \w+ 6\.\d+ MiB, {} at \w+ 6\.\d+ MiB\), and 1\d.* are free"


@pytest.fixture
def configs(hub: SmallHub, small_disk: Path) -> tuple[EngineConfig, EngineConfig]:
    hub.add(OTHER, DEMO, **{WEIGHTS: (DEMO / WEIGHTS).read_bytes()[:-1] + b"\1"})
    resize(small_disk, "11m")
    one, other = (EngineConfig.create(model=name, download_dir=str(small_disk)) for name in (NAME, OTHER))
    return one, other


def test_of_one_process(hub: SmallHub, configs: tuple[EngineConfig, EngineConfig]) -> None:
    with pytest.raises(InvalidConfig, match=BOTH.format(NAME, OTHER)):
        all_fetched(configs)
    assert WEIGHTS not in hub.sent
    here = fetched(configs[0])
    with pytest.raises(InvalidConfig, match=rf"^model {OTHER}: {OTHER} at \w+ takes 6"):
        all_fetched(configs)
    assert all_fetched([configs[0]] * 2) == (here, here)


def test_of_models_with_files_in_common(hub: SmallHub, configs: tuple[EngineConfig, EngineConfig]) -> None:
    """Which are there once."""
    hub.add(NAME, DEMO, **{"additional_chat_templates/tool_use.jinja": b"t"})
    commits = hub.repos[NAME].contents
    assert len(commits) == 2
    revisions = [configs[0].model_copy(update={"revision": commit}) for commit in commits]
    one, other = all_fetched(revisions)
    assert one.model != other.model


def test_of_another_process(hub: SmallHub, configs: tuple[EngineConfig, EngineConfig]) -> None:
    one, other = configs
    hub.halt_after = 1 << 20
    command = [sys.executable, "-c", FETCH, NAME, str(one.download_dir)]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ) as process:
        hub.has_halted.wait()
        with pytest.raises(InvalidConfig, match=rf"Models take 1[12].*\({OTHER} at \w+ 6.*, {NAME} at \w+ 5"):
            fetched(other)
        process.kill()
    hub.go_on.set()
    assert (Path(fetched(other).model) / WEIGHTS).exists()


def test_of_one_application(
    hub: SmallHub, configs: tuple[EngineConfig, EngineConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.yaml"
    engines = [f"- engine: {{model: {name}, kv_cache_memory_bytes: 16MiB}}" for name in (NAME, OTHER)]
    file.write_text("\n".join(["models:", *engines]))
    options = ["--port", str(free_port()), "--download-dir", str(configs[0].download_dir)]
    assert main(["serve", "--config", str(file), *options]) == 2
    assert "Models take 12." in capsys.readouterr().err
    assert hub.sent[WEIGHTS] == 2 << 18  # their headers
