"""Models of a hub by their names: what is fetched, once a node, and what goes wrong with it. The
hub is a server of HTTP in this process; the client is huggingface_hub.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.checkpoint.plan import make_plan
from cluster.download.disk.room import PARTIAL
from cluster.download.hub import endpoint
from cluster.download.models import all_fetched, fetched, outlined, pinned, planned
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.cluster.download.conftest import DEMO, NAME, resize
from tests.cluster.download.hub_server import SmallHub

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = "model.safetensors"
READ = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
LOOKS = "import sys; from cluster.download.models import fetched; from engine.config import EngineConfig; "
HURRIED = "import cluster.download.transfer; cluster.download.transfer.FIRST_WAIT_SECONDS = 0.01; "
FETCH = LOOKS + "print(fetched(EngineConfig.create(model=sys.argv[1], download_dir=sys.argv[2])).model)"


def elsewhere(config: EngineConfig, tmp_path: Path) -> EngineConfig:
    """The configuration as another node has it."""
    return config.model_copy(update={"download_dir": str(tmp_path / "other")})


def run(code: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait, which ends at once."""
    seconds: list[float] = []
    monkeypatch.setattr("cluster.download.transfer._sleep", lambda each, is_over: seconds.append(each))
    return seconds


def test_a_model_by_its_name(hub: SmallHub, config: EngineConfig) -> None:
    found = fetched(config)
    assert {path.name for path in Path(found.model).iterdir()} == {*READ, WEIGHTS}
    assert all((Path(found.model) / name).read_bytes() == (DEMO / name).read_bytes() for name in {*READ, WEIGHTS})
    assert (found.model_name, found.source) == (NAME, f"hf://{NAME}@{hub.repos[NAME].commits['main']}")
    num_requests = len(hub.requests)
    assert fetched(found) == found == fetched(pinned(config).model_copy(update={"source": found.source}))
    assert len(hub.requests) == num_requests + 1  # what main is now


def test_nothing_is_fetched_that_could_run(hub: SmallHub, config: EngineConfig) -> None:
    code, pickle = {"modeling_evil.py": b"import os"}, {"pytorch_model.bin": b"\x80\x04", "optimizer.pt": b"\x80\x04"}
    hub.add(NAME, DEMO, **code, **pickle, **{"onnx/model.onnx": b"x", "additional_chat_templates/tool_use.jinja": b"t"})
    folder = Path(fetched(config).model)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {*READ, WEIGHTS, "additional_chat_templates/tool_use.jinja"}


def test_all_nodes_fetch_the_commit_that_the_first_one_found(
    hub: SmallHub, config: EngineConfig, tmp_path: Path
) -> None:
    first = pinned(config)
    hub.add(NAME, DEMO, **{"generation_config.json": b'{"temperature": 0.5}'})
    there = fetched(elsewhere(first, tmp_path))
    assert there.source == first.source
    assert (Path(there.model) / "generation_config.json").read_bytes() == (DEMO / "generation_config.json").read_bytes()
    assert fetched(config).source != first.source


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1"])
def test_a_branch_is_a_revision(hub: SmallHub, config: EngineConfig, revision: str) -> None:
    branch = hub.repos[NAME].push({"config.json": b"{}", WEIGHTS: (DEMO / WEIGHTS).read_bytes()}, revision)
    found = fetched(config.model_copy(update={"revision": revision}))
    assert found.source == f"hf://{NAME}@{branch}"
    assert (Path(found.model) / "config.json").read_bytes() == b"{}"


def test_a_plan_needs_the_headers_only(hub: SmallHub, config: EngineConfig) -> None:
    found = outlined(config)
    local = config.model_copy(update={"model": str(DEMO)})
    assert make_plan(found) == make_plan(local)
    assert hub.sent[WEIGHTS] == 1 << 18
    num_requests = len(hub.requests)
    assert outlined(found) == found
    assert len(hub.requests) == num_requests


def test_errors_show_the_models_name_and_not_where_its_outline_is(hub: SmallHub, config: EngineConfig) -> None:
    hf_config = json.loads((DEMO / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    hub.add(NAME, DEMO, **{"config.json": json.dumps(hf_config).encode()})
    with pytest.raises(InvalidConfig, match=f"^{NAME}: config.json names the architecture LlamaForCausalLM"):
        planned(config)


def test_dummy_weights_are_not_fetched(hub: SmallHub, config: EngineConfig) -> None:
    found = fetched(config.model_copy(update={"load_format": "dummy"}))
    assert {path.name for path in Path(found.model).iterdir()} == READ
    assert {path.name for path in Path(outlined(found).model).iterdir()} == READ
    assert WEIGHTS in {path.name for path in Path(fetched(config).model).iterdir()}


@pytest.mark.parametrize(
    ("name", "refusal", "said"),
    [
        ("squadron/nothing", None, "has no model squadron/nothing, or it is private: check the name, or log in"),
        (NAME, (401, "GatedRepo"), "is gated, and no token is set: ask for access at "),
        (NAME, (403, "GatedRepo"), "is gated, and no token is set: ask for access at "),
        (NAME, (401, ""), "answers 401 when asked for squadron/demo"),
        (NAME, (403, ""), "answers 403 when asked for squadron/demo"),
        (NAME, (503, ""), "answers 503 when asked for squadron/demo"),
    ],
)
def test_a_refusal_says_what_to_do(
    hub: SmallHub,
    config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    refusal: tuple[int, str] | None,
    said: str,
) -> None:
    hub.refusal = refusal
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://user:s3cret@"))
    with pytest.raises(InvalidConfig) as caught:
        outlined(config.model_copy(update={"model": name}))
    assert said in str(caught.value) and "s3cret" not in str(caught.value)


def test_a_token_opens_a_gated_model(hub: SmallHub, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refusal, hub.token = (403, "GatedRepo"), "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(InvalidConfig, match="gated, and the token that is set has no access") as caught:
        fetched(config)
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_r\u00efght")
    with pytest.raises(InvalidConfig, match=r"HF_TOKEN, or what .* has stored, has other characters than ASCII"):
        fetched(config)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert (Path(fetched(config).model) / WEIGHTS).exists()


def test_a_token_that_has_expired(hub: SmallHub, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refusal = (401, "")
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    with pytest.raises(InvalidConfig, match=r"answers 401 .*; the token that is set may have expired") as caught:
        fetched(config)
    assert "hf_old" not in str(caught.value)


@pytest.mark.parametrize(
    ("faults", "comes"),
    [
        ({}, True),
        ({"num_busy": 1, "busy": WEIGHTS}, True),
        ({"cut_after": 1 << 17}, False),
        ({"token": "hf_another"}, False),
    ],
)
def test_a_token_is_told_to_the_hub_alone(hub: SmallHub, tmp_path: Path, faults: dict[str, Any], comes: bool) -> None:
    """Whatever is logged, and whatever goes wrong: it is in no output and in no file."""
    token = "hf_nobody_else_may_see_this"
    hub.refusal, hub.token = (403, "GatedRepo"), token
    for name, fault in faults.items():
        setattr(hub, name, fault)
    loud = "import logging; logging.basicConfig(level=logging.DEBUG); " + HURRIED + FETCH
    done = run(loud, NAME, str(tmp_path / "node"), HF_TOKEN=token, HF_HOME=str(tmp_path / "home"))
    assert (done.returncode == 0) == comes, done.stderr
    assert "DEBUG:" in done.stderr and token not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []


def test_a_token_from_a_file(hub: SmallHub, config: EngineConfig, tmp_path: Path) -> None:
    """As `hf auth login` writes it."""
    hub.refusal, hub.token = (401, "GatedRepo"), "hf_right"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_right\n")
    done = run(FETCH, NAME, str(config.download_dir), HF_HOME=str(tmp_path / "home"))
    assert (Path(done.stdout.strip()) / WEIGHTS).exists(), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"revision": "v9"}, "squadron/demo has no revision 'v9'"),
        ({"model": "hf://nothing"}, "hf://nothing is no name of the hub, which are ORGANISATION/MODEL"),
        ({"model": "s3://bucket/model", "revision": "v9"}, "s3:// has no revisions"),
        ({"model": str(DEMO), "revision": "v9"}, "is a folder"),
        ({"model": "nosuch://bucket/model"}, "there are hf://, s3://, gs:// and file://"),
        ({"model": "modelscope://a/b"}, "`modelscope download --model a/b --local_dir FOLDER`"),
    ],
)
def test_names_that_cannot_be(hub: SmallHub, config: EngineConfig, changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        outlined(config.model_copy(update=changes))
    assert said in str(caught.value)


def _index(*files: str) -> dict[str, bytes]:
    weight_map = {f"tensor {number}": file for number, file in enumerate(files)}
    return {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ({"README.md": b"a data set"}, "has no config.json, so it is no model in Hugging Face layout; it has README"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "pytorch_model.bin is a pickle, which could run code"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, "has no weight_map"),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../../x.safetensors"}}'},
            "names ../../x.safetensors, which is not there",
        ),
        (
            {"config.json": b"{}", "a.safetensors": b"", **_index("a.safetensors", "b.safetensors")},
            "names b.safetensors, which is not there",
        ),
    ],
)
def test_what_is_no_model(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes], said: str) -> None:
    hub.repos[NAME].push(contents)
    for locate in (outlined, fetched):
        with pytest.raises(InvalidConfig) as caught:
            locate(config)
        assert said in str(caught.value)


def test_shards_are_those_of_the_index(hub: SmallHub, config: EngineConfig) -> None:
    shard = (DEMO / WEIGHTS).read_bytes()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    small = {name: (DEMO / name).read_bytes() for name in READ}
    of_others = {"consolidated.safetensors": b"another layout", "model-00002-of-00001.safetensors": b""}
    weights = {"model-00001-of-00001.safetensors": shard, "model.safetensors.index.json": json.dumps(index).encode()}
    hub.repos[NAME].push(small | of_others | weights)
    assert {path.name for path in Path(fetched(config).model).iterdir()} == {*READ, *weights}


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_transfer_goes_on_where_it_broke_off(hub: SmallHub, config: EngineConfig, ignores_ranges: bool) -> None:
    hub.cut_after, hub.ignores_ranges = 5 << 20, ignores_ranges
    if ignores_ranges:  # each answer begins at the first byte
        partial = next(iter(_partials(hub, config)))
        partial.parent.mkdir(parents=True)
        partial.write_bytes((DEMO / WEIGHTS).read_bytes()[: 4 << 20])
        hub.cut_after = None
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    starts = [start for name, start in hub.ranges if name == WEIGHTS]
    assert starts == ([0] if ignores_ranges else [0, 5 << 20])


def _partials(hub: SmallHub, config: EngineConfig) -> Iterator[Path]:
    """Where transfers leave what they have of the weights."""
    digest = hashlib.sha256((DEMO / WEIGHTS).read_bytes()).hexdigest()
    yield Path(str(config.download_dir)) / "models--squadron--demo" / "blobs" / (digest + PARTIAL)


def test_a_file_that_stays_short(hub: SmallHub, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.download.transfer.FIRST_WAIT_SECONDS", 0.0)
    hub.lacking = 100
    with pytest.raises(InvalidConfig, match=r"cannot be fetched whole: it sent \d+ of \d+ bytes"):
        fetched(config)


ASKS = [({"Retry-After": "300"}, 300.0), ({"RateLimit": '"api";r=0;t=54'}, 55.0)]


@pytest.mark.parametrize(("asks", "seconds"), ASKS)
@pytest.mark.parametrize("busy", ["/api/models/", "/config.json", WEIGHTS])
def test_a_hub_that_asks_to_wait_is_waited_for(
    hub: SmallHub, config: EngineConfig, waits: list[float], busy: str, asks: dict[str, str], seconds: float
) -> None:
    """Whatever was asked of it: what the name is, a small file, the weights."""
    hub.busy, hub.num_busy, hub.asks = busy, 3, asks
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert waits == [seconds] * 3


def test_who_waits_says_for_how_long(hub: SmallHub, config: EngineConfig, waits: list[float]) -> None:
    hub.busy, hub.num_busy, hub.asks = "/config.json", 1, {"Retry-After": "300"}
    told: list[str] = []
    outlined(config, told.append)
    (line,) = told
    assert "429 Too Many Requests" in line and line.endswith("It is asked again in 300 s, as it says")


@pytest.mark.parametrize("num_busy", [100, 1])
def test_a_hub_that_stays_busy_or_asks_for_too_much_is_given_up(
    hub: SmallHub, config: EngineConfig, waits: list[float], num_busy: int
) -> None:
    hub.num_busy, hub.asks = num_busy, {"Retry-After": "9" if num_busy > 1 else "86400"}
    with pytest.raises(InvalidConfig, match=f"{hub.url} answers 429 when asked for {NAME}"):
        fetched(config)
    assert waits == ([9.0] * 5 if num_busy > 1 else [])


def test_a_busy_hub_is_not_waited_for_where_the_cache_has_the_model(
    hub: SmallHub, config: EngineConfig, waits: list[float]
) -> None:
    before = fetched(config).model
    hub.num_busy, hub.asks = 100, {"Retry-After": "300"}
    told: list[str] = []
    assert fetched(config, told.append).model == before
    assert "answers 429" in told[0] and waits == []


def test_damage_on_the_way_is_seen(hub: SmallHub, config: EngineConfig) -> None:
    hub.damage = lambda data: data[:-1] + b"\0" if len(data) > 1 << 20 else data
    with pytest.raises(InvalidConfig, match=r"what came of model\.safetensors has not the digest sha256:"):
        fetched(config)
    hub.damage = bytes
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()


def test_a_killed_process_loses_nothing_that_came(hub: SmallHub, config: EngineConfig) -> None:
    hub.halt_after = 5 << 20
    command = [sys.executable, "-c", FETCH, NAME, str(config.download_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert hub.has_halted.wait(60)
        (partial,) = _partials(hub, config)
        while partial.stat().st_size < 4 << 20:  # what was sent last may be on its way
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    hub.halt_after = None
    hub.go_on.set()
    assert (Path(fetched(config).model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    starts = [start for name, start in hub.ranges if name == WEIGHTS]
    assert starts[0] == 0 and starts[1] >= 4 << 20


def test_others_of_the_node_wait_and_say_so(hub: SmallHub, config: EngineConfig) -> None:
    hub.halt_after = 1 << 20
    config = pinned(config)
    found: list[EngineConfig] = []
    first = threading.Thread(target=lambda: found.append(fetched(config)))
    first.start()
    assert hub.has_halted.wait(60)
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        hub.go_on.set()

    found.append(fetched(config, told))
    first.join()
    assert lines == [f"Waiting for process {os.getpid()}, which fetches {config.source}"]
    assert found[0] == found[1]
    assert [start for name, start in hub.ranges if name == WEIGHTS] == [0]


def test_revisions_that_share_a_file_fetch_it_once(hub: SmallHub, config: EngineConfig) -> None:
    """At the same time: the one waits for what the other one brings, and neither loses it."""
    hub.halt_after = 1 << 20
    before = pinned(config)
    found: list[EngineConfig] = []
    first = threading.Thread(target=lambda: found.append(fetched(before)))
    first.start()
    assert hub.has_halted.wait(60)
    hub.halt_after = None
    hub.add(NAME, DEMO, **{"generation_config.json": b'{"temperature": 0.5}'})
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        if line.startswith("Waiting"):
            hub.go_on.set()

    later = fetched(config, told)
    hub.go_on.set()
    first.join()
    assert [each.source for each in found] == [before.source] and later.source != before.source
    assert lines[1:] == [f"Waiting for another process of this node, which fetches {WEIGHTS}"]
    assert [start for name, start in hub.ranges if name == WEIGHTS] == [0]
    for each in (found[0], later):
        assert (Path(each.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert list(Path(later.model).parents[1].glob(f"blobs/*{PARTIAL}")) == []


def test_what_came_is_entered_without_asking_again(hub: SmallHub, config: EngineConfig) -> None:
    """A hub that is busy by then would make a start fail that has all it needs."""
    hub.add(NAME, DEMO, **{"additional_chat_templates/tool_use.jinja": b"t"})
    folder = Path(fetched(config).model)
    assert [request for request in hub.requests if request.startswith("HEAD")] == []
    links = {path: path.readlink() for path in folder.rglob("*") if not path.is_dir()}
    assert all(link.parts[-2] == "blobs" and not link.is_absolute() for link in links.values())
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_bytes() == b"t"


def test_a_disk_that_is_too_small(hub: SmallHub, config: EngineConfig, small_disk: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"takes 6\.\d+ MiB more in .*disk.* free there; download_dir names"):
        fetched(config.model_copy(update={"download_dir": str(small_disk)}))
    assert WEIGHTS not in hub.sent


def test_a_folder_that_cannot_be_made_is_told_with_its_option(hub: SmallHub, config: EngineConfig) -> None:
    with pytest.raises(InvalidConfig, match=r"/proc/nope/.squadron cannot be made: No such file.*; download_dir names"):
        outlined(config.model_copy(update={"download_dir": "/proc/nope"}))


def test_of_several_models_an_error_names_its_own(hub: SmallHub, config: EngineConfig, tmp_path: Path) -> None:
    """While the name is looked up, and while the files come."""
    gone = config.model_copy(update={"model": "nobody/nothing", "served_model_name": "second"})
    with pytest.raises(InvalidConfig, match=r"^model second: .*nobody/nothing"):
        all_fetched([config, gone])
    told = [pinned(each) for each in (config, elsewhere(config, tmp_path))]
    del hub.repos[NAME]
    with pytest.raises(InvalidConfig, match=f"^model {NAME}: "):
        all_fetched(told)
    with pytest.raises(InvalidConfig, match=r"^(?!model )"):
        all_fetched(told[:1])


def test_a_disk_that_fills_meanwhile(hub: SmallHub, config: EngineConfig, small_disk: Path) -> None:
    """Room was there when it was looked for; the next start goes on."""
    resize(small_disk, "16m")
    hub.halt_after = 1 << 20
    config = config.model_copy(update={"download_dir": str(small_disk)})
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(fetched, config)
        hub.has_halted.wait()
        resize(small_disk, "3m")
        hub.go_on.set()
        with pytest.raises(
            InvalidConfig, match=r"No space left on device in .*disk.*: it takes 3\.\d+ MiB more, and 0 B"
        ):
            fetching.result()
    (came,) = small_disk.rglob(f"*{PARTIAL}")
    resize(small_disk, "16m")
    sent, num_came = hub.sent[WEIGHTS], came.stat().st_size
    folder = Path(fetched(config).model)
    assert (folder / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert hub.sent[WEIGHTS] - sent == (DEMO / WEIGHTS).stat().st_size - num_came


def test_a_disk_that_is_full(hub: SmallHub, config: EngineConfig, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(3 << 20))
    config = config.model_copy(update={"download_dir": str(small_disk)})
    for find in (outlined, fetched):
        with pytest.raises(InvalidConfig, match=r"No space left on device in .*disk.*, and 0 B are free there|0 B are"):
            find(config)


def test_offline(hub: SmallHub, config: EngineConfig) -> None:
    absent = run(FETCH, NAME, str(config.download_dir), HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set, and squadron/demo (revision main) is not in the cache" in absent.stderr
    folder = fetched(config).model
    num_requests = len(hub.requests)
    present = run(FETCH, NAME, str(config.download_dir), HF_HUB_OFFLINE="1")
    assert present.stdout.strip() == folder
    (said,) = present.stderr.splitlines()
    assert said.startswith(f"HF_HUB_OFFLINE is set. What the cache has is taken: hf://{NAME}@")
    assert len(hub.requests) == num_requests


def test_a_hub_that_cannot_be_reached(hub: SmallHub, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fetched(config)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    lines: list[str] = []
    assert fetched(config, lines.append) == found
    assert "cannot be reached" in lines[0] and "What the cache has is taken: hf://squadron/demo@" in lines[0]
    assert "is not in the cache" not in lines[0]
    with pytest.raises(InvalidConfig, match=r"cannot be reached .*set HF_ENDPOINT to a mirror, or name a folder"):
        fetched(config.model_copy(update={"model": "squadron/other"}))


def test_an_empty_endpoint_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert endpoint().startswith("https://")


def test_a_cache_that_is_a_link(hub: SmallHub, config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "node").symlink_to(tmp_path / "large disk")
    folder = Path(fetched(config).model)
    assert (folder / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert folder.resolve().is_relative_to(tmp_path / "large disk")


def test_a_cache_that_may_only_be_read(hub: SmallHub, config: EngineConfig, tmp_path: Path) -> None:
    """A volume that somebody has filled, with a home that may be written."""
    folder = Path(fetched(config).model)
    repo = folder.parents[1]
    shutil.rmtree(repo / "refs")
    (repo / "refs").write_text("in the way of a folder")  # nobody could write there, not even root
    shutil.rmtree(tmp_path / "node" / ".squadron")
    assert fetched(config).model == str(folder)


def test_two_processes_at_once(hub: SmallHub, config: EngineConfig) -> None:
    command = [sys.executable, "-c", FETCH, NAME, str(config.download_dir)]
    options: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    (first, _), (second, _) = (process.communicate(timeout=120) for process in both)
    assert first == second and (Path(first.strip()) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
    assert [start for name, start in hub.ranges if name == WEIGHTS] == [0]


def test_what_another_program_fetched_is_found_offline(
    hub: SmallHub, config: EngineConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing that it fetched in part."""
    found = fetched(config)
    for record in (tmp_path / "node" / ".squadron" / "fetched").iterdir():
        record.unlink()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    lines: list[str] = []
    assert fetched(config, lines.append).model == found.model
    assert "are whole by their headers" in lines[1]
    os.truncate(Path(found.model) / WEIGHTS, 1 << 20)
    with pytest.raises(InvalidConfig, match="cannot be reached"):
        fetched(config, lines.append)


def test_a_draft_model_is_fetched_beside_its_model(hub: SmallHub, tmp_path: Path) -> None:
    hub.add("squadron/draft", DEMO)
    names = {"model": "squadron/draft"}
    config = EngineConfig.create(model=NAME, download_dir=str(tmp_path / "node"), speculative_config=names)
    first = pinned(config)
    assert first.draft is not None
    assert first.draft.source == f"hf://squadron/draft@{hub.repos['squadron/draft'].commits['main']}"
    for found in (outlined(first), fetched(first)):
        assert found.draft is not None and found.draft.source == first.draft.source
        assert found.draft.model != found.model
        assert make_plan(found).draft_bytes > 0
    assert (Path(found.draft.model) / WEIGHTS).read_bytes() == (DEMO / WEIGHTS).read_bytes()
