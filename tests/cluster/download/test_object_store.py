"""Models of an object store: S3's protocol, spoken by moto's server in this process; the client is
s3fs.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import s3fs
from moto.server import DomainDispatcherApplication, create_backend_app

from cluster.checkpoint.plan import make_plan
from cluster.download.models import fetched, outlined, pinned
from cluster.download.records import Records
from cluster.download.transfer import PARTIAL
from cluster.launch.packages import ROOT
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.download.conftest import DEMO
from tests.cluster.download.faulty import Faulty, faulty

BUCKET, URI = "models", "s3://models/qwen/demo"
WEIGHTS = "model.safetensors"
READ = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def module_server() -> Iterator[Faulty]:
    with faulty(DomainDispatcherApplication(create_backend_app)) as server:
        yield server


@pytest.fixture
def server(module_server: Faulty) -> Faulty:
    module_server.refuses, module_server.num_cut, module_server.num_large = "", 0, 0
    return module_server


@pytest.fixture
def bucket(server: Faulty, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for name in sorted({*READ, WEIGHTS}):
        client.put_object(Bucket=BUCKET, Key=f"qwen/demo/{name}", Body=(DEMO / name).read_bytes())
    client.put_object(Bucket=BUCKET, Key="qwen/demo/pytorch_model.bin", Body=b"\x80\x04")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig.create(model=URI, download_dir=str(tmp_path / "node"))


def test_a_folder_of_a_bucket(bucket: object, config: EngineConfig) -> None:
    found = outlined(config)
    assert make_plan(found) == make_plan(config.model_copy(update={"model": str(DEMO)}))
    whole = fetched(found)
    assert {path.name for path in Path(whole.model).iterdir()} == {*READ, WEIGHTS}
    assert (Path(whole.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert whole.model_name == URI


def test_a_transfer_goes_on(bucket: object, config: EngineConfig) -> None:
    """What an earlier one left is taken, and is verified with the rest."""
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


def test_all_nodes_fetch_the_same_files(bucket: object, config: EngineConfig, tmp_path: Path) -> None:
    """Or none: an object store keeps no older ones."""
    first = fetched(config)
    boto3.client("s3").put_object(Bucket=BUCKET, Key="qwen/demo/generation_config.json", Body=b"{}")
    assert fetched(first) == first
    there = first.model_copy(update={"download_dir": str(tmp_path / "other")})
    with pytest.raises(InvalidConfig, match="has changed since this server was started; start it again"):
        fetched(there)
    assert fetched(config).source != first.source


DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.mark.parametrize("path", ["/models", "/models/qwen/demo/config.json"])
def test_what_may_not_be_read(bucket: object, server: Faulty, config: EngineConfig, path: str) -> None:
    """The list, or a file."""
    server.refuses, server.refusal = path, DENIED
    with pytest.raises(InvalidConfig, match=r"may not be read \(.*\); set the store's credentials on every node"):
        outlined(config)


def test_an_answer_that_ends_in_the_middle(bucket: object, server: Faulty, config: EngineConfig) -> None:
    server.num_cut = 1
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert server.num_large == 2


def test_a_disk_that_is_too_small(bucket: object, config: EngineConfig, small_disk: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"takes 6\.\d+ MiB more in .*disk.* free there; download_dir names"):
        fetched(config.model_copy(update={"download_dir": str(small_disk)}))


@pytest.mark.parametrize("uri", ["s3://models/nothing", "s3://nothing/qwen"])
def test_what_is_not_there(bucket: object, config: EngineConfig, uri: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{uri} "):
        outlined(config.model_copy(update={"model": uri}))


def test_a_store_that_cannot_be_reached(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(InvalidConfig, match="s3://models/qwen/demo cannot be read: "):
        outlined(config)


def test_a_package_that_is_missing() -> None:
    name = "gs://a/b"
    code = "import sys; sys.modules['gcsfs'] = None; from cluster.download.stores import pin; "
    code += f"pin({name!r}, {name!r}, None, None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "gs://a/b needs a package that is not installed: pip install 'squadron-serve[gcs]'" in done.stderr
