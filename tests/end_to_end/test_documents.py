"""What the documents show a user to type, against the running system."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapters import demo_shapes, save_adapter
from tests.documents.snippets import Snippet, snippet
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_command import ROOT, SQUADRON

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's, of its processes that still run
BASE_URL = "http://127.0.0.1:8000"
RAY_ADDRESS = "127.0.0.1:34827"
SECONDS = 300

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def shell(server: Server, shown: Snippet, before: str = "", after: str = "") -> str:
    """What the command prints. It is run as it stands, but for the server's address and one text
    more.
    """
    assert BASE_URL in shown.text
    command = shown.text.replace(BASE_URL, server.url).replace(before, after)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def execute(server: Server, shown: Snippet, **names: Any) -> dict[str, Any]:
    """The names that it leaves; a client is closed when the server ends."""
    exec(compile(shown.text.replace(BASE_URL, server.url), shown.page, "exec"), names)
    if "client" in names:
        server.clients.callback(names["client"].close)
    return names


@needs_curl
@pytest.mark.parametrize("shown", [snippet("README.md", "17 + 25"), snippet("docs/api.md", "17 + 25")], ids=str)
def test_curl(server: Server, shown: Snippet) -> None:
    answer = json.loads(shell(server, shown))
    assert answer["choices"][0]["message"]["content"] == "42"
    expected = json.loads(snippet("docs/api.md", "system_fingerprint").text)
    assert answer.keys() == expected.keys()
    assert answer["choices"][0].keys() == expected["choices"][0].keys()
    assert answer["usage"]["total_tokens"] == expected["usage"]["total_tokens"]


@needs_curl
def test_embeddings_and_ranks(server: Server) -> None:
    vectors = json.loads(shell(server, snippet("docs/api.md", "/v1/embeddings")))["data"]
    assert [len(each["embedding"]) for each in vectors] == [64, 64]
    (result,) = json.loads(shell(server, snippet("docs/api.md", "/v1/rerank")))["results"]
    assert result["index"] in (0, 1) and 0 <= result["relevance_score"] <= 1


@needs_curl
def test_metrics(server: Server) -> None:
    assert "vllm:num_requests_running{" in shell(server, snippet("docs/operations.md", "/metrics"))


@needs_curl
def test_an_adapter_is_loaded_and_unloaded(server: Server) -> None:
    root = Path(server.args["lora_roots"][0])
    save_adapter(root / "tone", demo_shapes(), rank=4, seed=5)
    shell(server, snippet("docs/adapters.md", "/v1/load_lora_adapter"), '"/adapters/', f'"{root}/')
    assert "tone" in [card.id for card in server.client().models.list().data]
    shell(server, snippet("docs/adapters.md", "/v1/unload_lora_adapter"))
    assert "tone" not in [card.id for card in server.client().models.list().data]


def test_a_structural_tag(server: Server) -> None:
    tag = json.loads(snippet("docs/api.md", '"structural_tag"').text)
    body = {"prompt": "one", "max_tokens": 4, "temperature": 0, "response_format": tag}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 200, answer.text


def test_the_openai_client(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    execute(server, snippet("README.md", "from openai"))
    assert capsys.readouterr().out == "3, 4, 5, 6, 7, 8, 9"


def test_tools(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    shown = snippet("docs/api.md", "57 + 68")
    execute(server, shown)
    assert printed_by_us(capsys) == shown.text.rpartition("# ")[2] == "The sum is 125."


def test_batches(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text(snippet("docs/batch.md", '"method": "POST"').text + "\n", encoding="utf-8")
    shown = snippet("docs/batch.md", "client.batches.create")
    names = execute(server, shown)
    later = "batch = client.batches.retrieve(batch.id)\n"
    begin = shown.text.index(later)
    deadline = time.monotonic() + SECONDS
    while not (printed := printed_by_us(capsys)):
        assert time.monotonic() < deadline and names["batch"].status in ("validating", "in_progress", "finalizing")
        time.sleep(0.05)
        exec(compile(shown.text[begin:], shown.page, "exec"), names)
    check_line(printed)


def printed_by_us(capsys: pytest.CaptureFixture[str]) -> str:
    """Without the lines of Ray's processes."""
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if "\x1b" not in line)


@pytest.mark.long  # else: tests/end_to_end/test_run_batch.py
def test_a_file_of_requests(server: Server, tmp_path: Path) -> None:
    asked = json.loads(snippet("docs/batch.md", '"method": "POST"').text)
    shown = snippet("docs/batch.md", "squadron run-batch")
    num_lines = int(shown.output.split()[0])
    lines = [json.dumps(asked | {"custom_id": str(number)}) for number in range(num_lines)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    _, *arguments = shown.text.replace(BASE_URL, server.url).split()
    done = subprocess.run(
        [*SQUADRON, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout.strip()) == (0, shown.output), done.stderr
    answers = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(answers) == num_lines
    check_line(answers[0])


def check_line(printed: str) -> None:
    """An answered line has the form that the page shows."""
    answer, shown = json.loads(printed), json.loads(snippet("docs/batch.md", "batch_req_6f1c").text)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "42"
    assert (answer.keys(), answer["response"].keys()) == (shown.keys(), shown["response"].keys())


def test_the_handle(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    execute(server, snippet("docs/python.md", "handle.post.remote"), handle=server.handle)
    assert printed_by_us(capsys).startswith("4 {'prompt_tokens': ")
    shown = snippet("docs/python.md", "max_token'").text
    asked, _, expected = shown.removeprefix(">>> ").partition("\n")
    assert repr(eval(asked, {"handle": server.handle})) == expected


def test_another_ray_job(server: Server, tmp_path: Path) -> None:
    code = snippet("docs/python.md", "get_app_handle").text
    assert RAY_ADDRESS in code
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | server.ray.environment
    done = subprocess.run(
        [sys.executable, "-c", code.replace(RAY_ADDRESS, server.ray.address)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "4"
    assert lines[-1].endswith("True")
