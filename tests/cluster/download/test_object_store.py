"""Models of object stores: S3's protocol, spoken by moto's server in this process, and that of
Google's store, spoken by an emulator; the clients are s3fs and gcsfs.
"""

import hashlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
import s3fs
from moto.server import DomainDispatcherApplication, create_backend_app

from cluster.checkpoint.plan import make_plan
from cluster.download.choice import Share
from cluster.download.disk.room import PARTIAL
from cluster.download.models import fetched, outlined, pinned
from cluster.download.object_store import _explained
from cluster.download.records import Records
from cluster.download.store import Unreachable
from cluster.launch.packages import ROOT
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.download.conftest import DEMO, resize
from tests.cluster.download.faulty import Faulty, faulty
from tests.cluster.download.parts import ALL, OF_STAGE, save_in_parts
from tests.end_to_end.conftest import free_port

WEIGHTS = "model.safetensors"
READ = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}

of_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)
of_all = pytest.mark.parametrize(
    "bucket",
    [
        "s3",
        # Of how the emulator's bucket is filled.
        pytest.param("gs", marks=pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")),
    ],
    indirect=True,
)


@dataclass(frozen=True)
class Bucket:
    """One named `models`."""

    uri: str  # of the demo's folder in it
    put: Callable[[str, bytes], object]  # a file's name in that folder, and what it holds
    put_beside: Callable[[str, bytes], object]  # a file's name in the folder above, and what it holds


@pytest.fixture(scope="module")
def module_server() -> Iterator[Faulty]:
    with faulty(DomainDispatcherApplication(create_backend_app)) as server:
        yield server


@pytest.fixture
def server(module_server: Faulty) -> Faulty:
    """S3's."""
    module_server.refuses, module_server.num_cut, module_server.num_large = "", 0, 0
    module_server.replaces, module_server.most, module_server.ignores_ranges = {}, None, False
    module_server.on_large = object
    return module_server


@pytest.fixture
def s3(server: Faulty, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    yield Bucket(
        "s3://models/qwen/demo",
        lambda name, data: client.put_object(Bucket="models", Key=f"qwen/demo/{name}", Body=data),
        lambda name, data: client.put_object(Bucket="models", Key=f"qwen/{name}", Body=data),
    )
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    gcsfs, emulator = pytest.importorskip("gcsfs"), pytest.importorskip("gcp_storage_emulator.server")
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, True, "models")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # nobody asks for credentials
    gcsfs.GCSFileSystem.clear_instance_cache()
    store = gcsfs.GCSFileSystem()
    yield Bucket(
        "gs://models/qwen/demo",
        lambda name, data: store.pipe_file(f"models/qwen/demo/{name}", data),
        lambda name, data: store.pipe_file(f"models/qwen/{name}", data),
    )
    server.stop()
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """With the demo, and a file that is not read."""
    made: Bucket = request.getfixturevalue(request.param)
    for name in sorted({*READ, WEIGHTS}):
        made.put(name, (DEMO / name).read_bytes())
    made.put("pytorch_model.bin", b"\x80\x04")
    return made


@pytest.fixture
def config(bucket: Bucket, tmp_path: Path) -> EngineConfig:
    return EngineConfig.create(model=bucket.uri, download_dir=str(tmp_path / "node"))


@of_all
def test_a_folder_of_a_bucket(bucket: Bucket, config: EngineConfig) -> None:
    found = outlined(config)
    assert make_plan(found) == make_plan(config.model_copy(update={"model": str(DEMO)}))
    whole = fetched(found)
    assert {path.name for path in Path(whole.model).iterdir()} == {*READ, WEIGHTS}
    assert (Path(whole.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert whole.model_name == bucket.uri
    assert fetched(found) == whole


@of_all
def test_a_transfer_goes_on(config: EngineConfig) -> None:
    """What an earlier one left is taken, and verified with the rest by the MD5 that the store
    tells.
    """
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


FETCH = """
import sys
from cluster.download import models, object_store
from engine.config import EngineConfig
object_store.PIECE_BYTES = 1 << 20
models.fetched(EngineConfig.create(model=sys.argv[1], download_dir=sys.argv[2]))
"""


@of_s3
def test_a_killed_process_loses_no_piece_that_came(server: Faulty, config: EngineConfig) -> None:
    config = pinned(config)
    place = Records(config.download_dir).files(str(config.source)) / WEIGHTS
    server.most = 3
    server.sent.clear()
    command = [sys.executable, "-c", FETCH, config.model, str(config.download_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert server.has_halted.wait(60)
        process.kill()
    assert place.with_name(WEIGHTS + PARTIAL).stat().st_size == 3 << 20
    server.most = None
    server.go_on.set()
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert server.sent[WEIGHTS] == (DEMO / WEIGHTS).stat().st_size


@of_all
def test_all_nodes_fetch_the_same_files(bucket: Bucket, config: EngineConfig, tmp_path: Path) -> None:
    """Or none: an object store keeps no older ones."""
    elsewhere = outlined(config.model_copy(update={"download_dir": str(tmp_path / "other")}))
    first = fetched(config)
    bucket.put("generation_config.json", b"{}")
    assert fetched(first) == first
    nowhere = first.model_copy(update={"download_dir": str(tmp_path / "third")})
    for late in (elsewhere, nowhere):
        with pytest.raises(InvalidConfig, match="has changed since this server was started; start it again"):
            fetched(late)
    assert fetched(config).source != first.source


@of_all
def test_what_is_not_read_may_change(bucket: Bucket, config: EngineConfig) -> None:
    first = pinned(config)
    for name in ("README.md", "optimizer.pt", "runs/events", "other.safetensors"):
        bucket.put(name, b"of a training that goes on")
    assert pinned(config) == first
    assert (Path(fetched(first).model) / WEIGHTS).exists()


@of_s3
def test_a_training_that_saves_its_states_below_does_not_change_the_model(bucket: Bucket, tmp_path: Path) -> None:
    for name, data in save_in_parts(tmp_path / "published").items():
        bucket.put_beside(f"parts/{name}", data)
    uri = bucket.uri.replace("demo", "parts")
    first = pinned(EngineConfig.create(model=uri, download_dir=str(tmp_path / "node")))
    bucket.put_beside("parts/checkpoint-500/model-00001-of-00002.safetensors", b"of a training that goes on")
    assert pinned(first.model_copy(update={"source": None})).source == first.source


@of_s3
def test_a_name_as_long_as_object_stores_allow(bucket: Bucket, tmp_path: Path) -> None:
    below = "/".join(["a folder of many words " * 2] * 12)
    for name in sorted({*READ, WEIGHTS}):
        bucket.put_beside(f"{below}/{name}", (DEMO / name).read_bytes())
    uri = bucket.uri.replace("demo", below)
    found = fetched(outlined(EngineConfig.create(model=uri, download_dir=str(tmp_path / "node"))))
    assert (Path(found.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()


@of_s3
def test_models_of_like_names_are_not_confused(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store cannot be reached."""
    names = ("a/b", "a--b", "a b", "a+b", "a-/b", "a/-b")
    configs = []
    for number, place in enumerate(names):
        for name in sorted({*READ, WEIGHTS}):
            bucket.put_beside(f"{place}/{name}", (DEMO / name).read_bytes())
        bucket.put_beside(f"{place}/generation_config.json", b'{"top_k": %d}' % (number + 1))
        uri = bucket.uri.replace("demo", place)
        configs.append(EngineConfig.create(model=uri, download_dir=str(tmp_path / "node")))
    before = [fetched(config) for config in configs]
    unreachable(monkeypatch)
    assert [fetched(config, lambda _: None) for config in configs] == before


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()


@of_s3
def test_a_start_without_the_store(bucket: Bucket, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was fetched last, and not by what was fetched in part."""
    before = fetched(config)
    bucket.put("generation_config.json", b"{}")
    found = fetched(config)
    unreachable(monkeypatch)
    lines: list[str] = []
    assert fetched(config, lines.append) == found != before
    assert "s3://models/qwen/demo cannot be read: " in lines[0]
    assert lines[0].endswith(f"What the cache has is taken: {found.source}")
    assert fetched(before) == before
    (Path(found.model) / WEIGHTS).unlink()
    with pytest.raises(InvalidConfig, match="s3://models/qwen/demo cannot be read: "):
        fetched(config, lines.append)


@of_s3
@pytest.mark.parametrize("kind", ["aws:kms", "aws:kms:dsse"])
def test_digests_of_encrypted_objects_are_none(bucket: Bucket, config: EngineConfig, server: Faulty, kind: str) -> None:
    """Moto's ETags are digests also of these, as S3's are not."""
    client = boto3.client("s3")
    for name in sorted({*READ, WEIGHTS}):
        data = (DEMO / name).read_bytes()
        client.put_object(Bucket="models", Key=f"qwen/demo/{name}", Body=data, ServerSideEncryption=kind)
    server.replaces = {f'"{hashlib.md5((DEMO / WEIGHTS).read_bytes()).hexdigest()}"': f'"{"0" * 32}"'}
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()


@of_all
@pytest.mark.parametrize("folder", ["models/nothing", "nothing/qwen"])
def test_what_is_not_there(bucket: Bucket, config: EngineConfig, folder: str) -> None:
    uri = bucket.uri.replace("models/qwen/demo", folder)
    with pytest.raises(InvalidConfig, match=f"{uri} "):
        outlined(config.model_copy(update={"model": uri}))


DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@of_s3
@pytest.mark.parametrize("path", ["/models", "/models/qwen/demo/config.json"])
def test_what_may_not_be_read(server: Faulty, config: EngineConfig, path: str) -> None:
    """The list, or a file."""
    server.refuses, server.refusal = path, DENIED
    with pytest.raises(InvalidConfig, match=r"may not be read \(.*\); set the store's credentials on every node"):
        outlined(config)


@of_s3
def test_an_answer_that_ends_in_the_middle(server: Faulty, config: EngineConfig) -> None:
    server.num_cut = 1
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert server.num_large == 2


@of_all
def test_a_node_fetches_the_files_of_its_stages(bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """And the others when it needs them."""
    contents = save_in_parts(tmp_path / "published")
    for name, data in contents.items():
        bucket.put_beside(f"parts/{name}", data)
    uri = bucket.uri.replace("demo", "parts")
    config = pinned(EngineConfig.create(model=uri, download_dir=str(tmp_path / "node")))
    found = fetched(config, share=Share(frozenset({1}), 2))
    assert {path.name for path in Path(found.model).glob("*.safetensors")} == OF_STAGE[1]
    whole = fetched(config)
    assert whole == found
    assert all((Path(whole.model) / name).read_bytes() == data for name, data in contents.items())
    if bucket.uri.startswith("s3:"):
        server: Faulty = request.getfixturevalue("server")
        assert {name: server.sent[name] for name in ALL} == {name: len(contents[name]) for name in ALL}


@of_s3
def test_a_disk_that_is_too_small(config: EngineConfig, small_disk: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"takes 6\.\d+ MiB more in .*disk.* free there; download_dir names"):
        fetched(config.model_copy(update={"download_dir": str(small_disk)}))


@of_s3
def test_a_disk_that_fills_meanwhile(
    bucket: Bucket, config: EngineConfig, server: Faulty, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room was there when it was looked for; the next start goes on."""
    monkeypatch.setattr("cluster.download.object_store.PIECE_BYTES", 2 << 20)
    config = config.model_copy(update={"download_dir": str(small_disk)})
    resize(small_disk, "16m")
    server.on_large = lambda: resize(small_disk, "3m")
    full = r"No space left on device in .*disk.*: it takes [34]\.\d+ MiB more, and 0 B"
    with pytest.raises(InvalidConfig, match=full):
        fetched(config)
    server.on_large = object
    (came,) = small_disk.rglob(f"*{PARTIAL}")
    assert not came.with_suffix("").exists()
    resize(small_disk, "16m")
    num_came, num_before = came.stat().st_size, server.sent[WEIGHTS]
    folder = Path(fetched(config).model)
    assert (folder / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert server.sent[WEIGHTS] - num_before == (DEMO / WEIGHTS).stat().st_size - num_came


@of_s3
def test_a_server_that_ignores_ranges(
    bucket: Bucket, config: EngineConfig, server: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the whole file, once."""
    monkeypatch.setattr("cluster.download.object_store.PIECE_BYTES", 2 << 20)
    server.ignores_ranges = True
    num_before = server.sent[WEIGHTS]
    folder = Path(fetched(config).model)
    assert (folder / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert server.sent[WEIGHTS] - num_before == (DEMO / WEIGHTS).stat().st_size


def test_a_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    unreachable(monkeypatch)
    with pytest.raises(InvalidConfig, match="s3://models/qwen/demo cannot be read: "):
        outlined(EngineConfig.create(model="s3://models/qwen/demo", download_dir=str(tmp_path / "node")))


def test_what_a_filesystem_logs_itself_is_told_once(gs: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """gcsfs tries for half a minute before it logs that a store cannot be reached."""
    logger = logging.getLogger("gcsfs")
    logger.setLevel(logging.NOTSET)
    with pytest.raises(InvalidConfig, match="has no files: there is no such folder, or it is empty"):
        outlined(EngineConfig.create(model="gs://models/qwen/none"))
    logger.error("out of retries")
    assert [record for record in caplog.records if record.name == "gcsfs"] == []


def test_a_package_that_is_missing() -> None:
    name = "gs://a/b"
    code = "import sys; sys.modules['gcsfs'] = None; from cluster.download.stores import pin; "
    code += f"pin({name!r}, {name!r}, None, None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "gs://a/b needs a package that is not installed: pip install 'squadron-serve[gcs]'" in done.stderr


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_google_is_told_from_what_may_pass(status: int) -> None:
    """By what gcsfs makes of the store's answer; the emulator refuses nothing."""
    retry = pytest.importorskip("gcsfs").retry
    with pytest.raises(Exception) as caught:
        retry.validate_response(status, b'{"error": {"message": "no"}}', "models/qwen")
    assert "may not be read" in str(_explained(caught.value, "gs://models/qwen/demo"))
    with pytest.raises(Exception) as caught:
        retry.validate_response(503, b"", "models/qwen")
    assert isinstance(_explained(caught.value, "gs://models/qwen/demo"), Unreachable)
