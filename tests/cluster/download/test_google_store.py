"""Models of Google's object store: its JSON protocol, spoken by an emulator in this process; the
client is gcsfs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.checkpoint.plan import make_plan
from cluster.download.models import fetched, outlined, pinned
from cluster.download.object_store import _explained
from cluster.download.records import Records
from cluster.download.store import Unreachable
from cluster.download.transfer import PARTIAL
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.download.conftest import DEMO
from tests.end_to_end.conftest import free_port

gcsfs = pytest.importorskip("gcsfs")
emulator = pytest.importorskip("gcp_storage_emulator.server")

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of how the bucket is filled

URI, WEIGHTS = "gs://models/qwen/demo", "model.safetensors"
READ = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """gcsfs' filesystem, with the demo in a bucket."""
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, True, "models")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # nobody asks for credentials
    gcsfs.GCSFileSystem.clear_instance_cache()
    store = gcsfs.GCSFileSystem()
    for name in sorted({*READ, WEIGHTS}):
        store.pipe_file(f"models/qwen/demo/{name}", (DEMO / name).read_bytes())
    yield store
    server.stop()
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig.create(model=URI, download_dir=str(tmp_path / "node"))


def test_a_folder_of_a_bucket(bucket: Any, config: EngineConfig) -> None:
    found = outlined(config)
    assert make_plan(found) == make_plan(config.model_copy(update={"model": str(DEMO)}))
    whole = fetched(found)
    assert {path.name for path in Path(whole.model).iterdir()} == {*READ, WEIGHTS}
    assert (Path(whole.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert fetched(found) == whole


def test_all_nodes_fetch_the_same_files(bucket: Any, config: EngineConfig, tmp_path: Path) -> None:
    first = outlined(config)
    bucket.pipe_file("models/qwen/demo/generation_config.json", b"{}")
    with pytest.raises(InvalidConfig, match="has changed since this server was started; start it again"):
        fetched(first)
    assert fetched(config).source != first.source


@pytest.mark.parametrize("uri", ["gs://models/nothing", "gs://nothing/qwen"])
def test_what_is_not_there(bucket: Any, config: EngineConfig, uri: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{uri} "):
        outlined(config.model_copy(update={"model": uri}))


def test_a_transfer_goes_on(bucket: Any, config: EngineConfig) -> None:
    """What an earlier one left is taken, and verified by the MD5 that the store tells."""
    config = pinned(config)
    place = Records(config.download_dir).files(str(config.source)) / WEIGHTS
    partial = place.with_name(WEIGHTS + PARTIAL)
    partial.parent.mkdir(parents=True)
    half = (DEMO / WEIGHTS).read_bytes()[: 3 << 20]
    partial.write_bytes(bytes(len(half)))
    with pytest.raises(InvalidConfig, match=r"what came of model\.safetensors has not the digest md5:"):
        fetched(config)
    partial.write_bytes(half)
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_from_what_may_pass(status: int) -> None:
    """By what gcsfs makes of the store's answer; the emulator refuses nothing."""
    with pytest.raises(Exception) as caught:
        gcsfs.retry.validate_response(status, b'{"error": {"message": "no"}}', "models/qwen")
    assert "may not be read" in str(_explained(caught.value, URI))
    with pytest.raises(Exception) as caught:
        gcsfs.retry.validate_response(503, b"", "models/qwen")
    assert isinstance(_explained(caught.value, URI), Unreachable)
