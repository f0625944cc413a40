"""The `squadron` command as a user starts it: a process of its own."""

import contextlib
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from cluster.api.keys.key_ring import API_KEY_VARIABLE
from cluster.cli import main
from cluster.launch.node.privacy import AUTHENTICATION
from tests.adapters import demo_shapes, save_adapter
from tests.corruptions import IN_WEIGHTS, TENSOR, WEIGHTS, copy_demo
from tests.documents.snippets import snippet
from tests.end_to_end.conftest import DEMO, LOOPBACK, free_port

SQUADRON = [sys.executable, "-m", "cluster.cli"]
ROOT = DEMO.parents[1]
GONE_SECONDS = 120.0
REFUSAL_SECONDS = 10.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SQUADRON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180)


@pytest.mark.long  # else: tests/cluster/commands/test_generate.py
def test_generate_answers() -> None:
    done = run("generate", str(DEMO), "--prompt", "What is 17 + 25?", "--prompt", "What is 2 + 2?", "--device", "cpu")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["42", "4"]), done.stderr


@pytest.mark.long  # else: page/test_demo.py
def test_demo_once() -> None:
    done = run("demo", "--once", "--port", str(free_port()))
    assert done.returncode == 0, done.stderr
    shown = snippet("docs/serving.md", "make demo").output.partition("\nAsk more")[0]
    assert without_times(done.stdout.strip()) == without_times(shown)
    assert done.stderr == ""


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d s", "", re.sub(r"^\[ *\d+\.\d s\]", "[]", text, flags=re.MULTILINE))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "cuda"], "device=cuda needs 1 GPU(s), and this machine has 0; device=cpu would work"),
        (["--quantization", "fp8"], "quantization=fp8 is not computed on CPU; int8 or int4 would work"),
    ],
)
def test_serve_refuses_what_takes_a_gpu_where_there_is_none(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(DEMO), "--port", str(free_port()), *options]) == 2
    assert capsys.readouterr().err == f"squadron serve: {sentence}\n"


def test_serve_says_what_is_not_computed_here_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-tp", "2", "--dtype", "float16", "--device", "cpu"]
    assert main(["serve", str(DEMO), "--port", str(free_port()), *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("squadron serve: ") and "float16" in line


def test_serve_tells_of_a_lost_worker_on_its_console_and_in_its_logs(tmp_path: Path) -> None:
    """Its streams go on, of the model and of an adapter."""
    port, kept = free_port(), tmp_path / "logs"
    mark, key = f"SQUADRON_TEST={tmp_path}", secrets.token_hex(16)
    environment = {name: value for name, value in os.environ.items() if name not in AUTHENTICATION}
    harbour = save_adapter(tmp_path / "harbour", demo_shapes(), rank=8, seed=1)
    options = ["-tp", "2", "--device", "cpu", "--log-dir", str(kept), "--log-format", "json", "--enable-log-requests"]
    options += ["--enable-lora", "--lora-modules", f"harbour={harbour.folder}"]
    process = subprocess.Popen(
        [*SQUADRON, "serve", str(DEMO), "--port", str(port), *options],
        cwd=ROOT,
        env=environment | {API_KEY_VARIABLE: key} | dict([mark.split("=", 1)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        started = [process.stdout.readline() for _ in SERVING]
        logs = Path(next(line for line in started if line.startswith("Logs: ")).split()[1])
        folder = check_what_has_started(started, port, mark, key)
        assert processes_with(f"{API_KEY_VARIABLE}={key}") == [process.pid]  # and none of Ray's
        with openai.OpenAI(base_url=f"http://{LOOPBACK}:{port}/v1", api_key=key, max_retries=0) as client:
            send_hostile_requests(client)
            adapted: dict[str, Any] = {"model": "harbour", "prompt": "once", "max_tokens": 299, "temperature": 0}
            adapted["extra_body"] = {"ignore_eos": True}
            expected = client.completions.create(**adapted).choices[0].text
            worker = next(pid for pid in processes_with(mark) if is_worker(pid))
            stream = client.completions.create(
                model="demo", prompt="once", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            of_adapter = client.completions.create(stream=True, **adapted)
            text = next(of_adapter).choices[0].text
            os.kill(worker, signal.SIGKILL)
            assert list(stream)[-1].choices[0].finish_reason == "length"
            assert text + "".join(chunk.choices[0].text for chunk in of_adapter) == expected
        assert not any(key.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert re.fullmatch(
            r"rank [01] lost \(SIGKILL\); replaced after \d+\.\d s; [12] stream\(s\) resumed\n",
            process.stderr.readline(),
        )
        (log,) = logs.glob("serve/replica_squadron_EngineDeployment_*.log")
        os.kill(process.pid, signal.SIGTERM)
        said, erred = process.communicate(timeout=90)
        assert process.returncode == 0
        assert (said.splitlines()[-1], erred) == (f"The logs are in {kept}", "")
        assert "A worker died" not in said
        wait_until_gone(mark)
        assert not folder.exists()
        text = (kept / "serve" / log.name).read_text()
        assert "resumed after" in text and " CALL " not in text
        check_logs(kept, said + erred, key)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.long
def test_serve_several_models_of_a_file(tmp_path: Path) -> None:
    """The file of this repository as it is."""
    port, key = free_port(), secrets.token_hex(16)
    environment = {name: value for name, value in os.environ.items() if name not in AUTHENTICATION}
    file = ROOT / "configs" / "engine" / "two-models.yaml"
    process = subprocess.Popen(
        [*SQUADRON, "serve", "--config", str(file), "--port", str(port), "--device", "cpu"],
        cwd=ROOT,
        env=environment | {API_KEY_VARIABLE: key},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith("Ready: ") for line in process.stdout)
        with openai.OpenAI(base_url=f"http://{LOOPBACK}:{port}/v1", api_key=key, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["steady", "canary", "gpt-4o-mini", "demo"]
            for asked, answers in {"steady": "steady", "canary": "canary", "gpt-4o-mini": "steady"}.items():
                answer = client.chat.completions.create(
                    model=asked, messages=[{"role": "user", "content": "What is 17 + 25?"}], temperature=0
                )
                assert (answer.model, answer.choices[0].message.content) == (answers, "42")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=90)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::WorkerActor.run")
    except (FileNotFoundError, ProcessLookupError):
        return False


SECRET = "cornflower"  # in everything that a client of these tests says


def send_hostile_requests(client: openai.OpenAI) -> None:
    """Requests that try to get into the logs: into lines of their own, or with their text."""
    forged = '\n{"message": "request ended", "status": 200} ' + SECRET
    for prompt in (forged, SECRET, "\x1b[2J\u2028\x85" + SECRET, SECRET * 5000, [1, -1]):
        for more in (
            {},
            {"temperature": 7},
            {SECRET: forged},
            {"stop": forged},
            {"user": forged, "cache_salt": SECRET},
        ):
            with contextlib.suppress(openai.APIStatusError):
                client.completions.create(model="demo", prompt=prompt, max_tokens=2, extra_body=more)
    for path in (f"/completions?key={SECRET}", f"/{SECRET}%0A{SECRET}"):
        with contextlib.suppress(openai.APIStatusError):
            client.post(path, cast_to=object, body={"prompt": SECRET})
    for headers in ({"Authorization": f"Bearer {SECRET}"}, {"X-Request-Id": "a%0ab\tc d"}, {"traceparent": SECRET}):
        with contextlib.suppress(openai.APIStatusError):
            client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": forged}], max_tokens=2, extra_headers=headers
            )


def check_logs(folder: Path, console: str, key: str) -> None:
    """Nothing that a client said or the key is in any file or on the console, and each line of our
    logs is an event.
    """
    for told in (*(path.read_bytes() for path in folder.rglob("*") if path.is_file()), console.encode()):
        for hidden in (SECRET, key):
            found = told.find(hidden.encode())
            assert found < 0, told[max(found - 200, 0) : found + 200]
    events = []
    for path in [*folder.glob("serve/replica_*.log"), *folder.glob("serve/proxy_*.log")]:
        events += [json.loads(line) for line in path.read_text().splitlines()]
    ended = [event for event in events if event["message"].startswith("request ended: ")]
    assert {event["status"] for event in ended} == {200}  # others were refused before they came to the gateway
    (resumed,) = [event for event in ended if event["output_tokens"] == 300]
    assert resumed["finish_reasons"] == "length" and resumed["e2e_seconds"] > resumed["ttft_seconds"] > 0


@pytest.mark.parametrize("name", IN_WEIGHTS)
def test_serve_refuses_damaged_weights_soon(tmp_path: Path, name: str) -> None:
    """Without Ray, which would take as long to start as all of this may; seconds are those of a
    processor.
    """
    checkpoint = copy_demo(tmp_path / "model")
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    IN_WEIGHTS[name](checkpoint)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("serve", str(checkpoint), "--port", str(free_port()), "-tp", "2")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: refused after {seconds:.1f} s")
    assert done.returncode == 2
    assert done.stderr.startswith(f"squadron serve: {checkpoint}/{WEIGHTS}: tensor {TENSOR} ")
    assert seconds <= REFUSAL_SECONDS


def kind_of(line: str) -> str:
    """Its first word, or what cores are divided by."""
    return re.sub(r"^\d+ cores?:", "cores:", line).partition(" ")[0]


# The lines that the documents show of a start.
SERVING = [
    kind_of(line)
    for line in snippet("docs/serving.md", "squadron serve configs/demo --tensor-parallel-size 2").output.splitlines()
]


@pytest.mark.long  # else: test_ingress.py, with a signal to every process
@pytest.mark.parametrize(
    "to_all", [pytest.param(False, id="to our process group"), pytest.param(True, id="to every process")]
)
def test_serve_until_it_is_terminated(tmp_path: Path, to_all: bool) -> None:
    """A signal to the group leaves Ray to us: what runs is finished. After one to everybody nothing
    is left behind either.
    """
    port = free_port()
    options = ["--port", str(port), "--served-model-name", "small", "--device", "cpu"]
    mark = f"SQUADRON_TEST={tmp_path}"  # which every process below inherits
    key = f"sk-{secrets.token_hex(16)}"  # which no other test's processes have
    # Without the token of a cluster that other tests have: this one is to have its own.
    environment = {name: value for name, value in os.environ.items() if name not in AUTHENTICATION}
    environment |= dict([mark.split("=", 1)]) | {API_KEY_VARIABLE: key}
    process = subprocess.Popen(
        [*SQUADRON, "serve", str(DEMO), *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        started = [process.stdout.readline() for _ in SERVING]
        folder = check_what_has_started(started, port, mark, key)
        assert processes_with(f"{API_KEY_VARIABLE}={key}") == [process.pid]  # and none of Ray's
        with openai.OpenAI(base_url=f"http://{LOOPBACK}:{port}/v1", api_key=key, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["small"]
            stream = client.completions.create(
                model="small", prompt="once", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
            )
            received = [next(stream)]
            assert not any(key.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
            if to_all:
                for pid in processes_with(mark):
                    os.kill(pid, signal.SIGTERM)
            else:
                os.killpg(process.pid, signal.SIGTERM)
                received += list(stream)
                assert received[-1].choices[0].finish_reason == "length"
            assert process.wait(timeout=60) == 0
        said, stopping = process.stdout.read(), "Stopping; running requests are finished first\n"
        # Ray's autoscaler, ended by a signal to everybody, may still manage to have its own end
        # told.
        assert said == stopping or (to_all and stopping in said and "(raylet)" in said)
        wait_until_gone(mark)
        assert not folder.exists()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def check_what_has_started(said: list[str], port: int, mark: str, key: str) -> Path:
    """By what the documents show, and without the key; the folder of its own."""
    assert [kind_of(line) for line in said] == SERVING
    assert said[-2].startswith(f"Ready: http://{LOOPBACK}:{port}/v1")
    (token,) = map(Path, values_of("RAY_AUTH_TOKEN_PATH", mark))
    assert said[-1].split()[-2:] == ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN_PATH={token}"]
    folder = token.parent
    assert [path.stat().st_mode & 0o777 for path in (token, folder)] == [0o600, 0o700]
    assert ray_folders(mark) == {folder / "ray"}
    assert key not in "".join(commands_of(mark))
    assert values_of("MALLOC_ARENA_MAX", mark) == {"2"}
    return folder


def wait_until_gone(mark: str) -> None:
    """Wait for the end of every process that has `mark` in its environment."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes_with(mark: str) -> list[int]:
    """The processes that have this line in their environment."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if mark in environment_of(folder)]


def values_of(name: str, mark: str) -> set[str]:
    """What the processes that have `mark` in their environment have there as `name`."""
    found = set()
    for pid in processes_with(mark):
        lines = (line.partition("=") for line in environment_of(Path(f"/proc/{pid}")))
        found |= {value for key, _, value in lines if key == name}
    return found


def commands_of(mark: str) -> list[str]:
    """The command lines of the processes that have `mark` in their environment."""
    found = []
    for pid in processes_with(mark):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
    return found


def ray_folders(mark: str) -> set[Path]:
    """Ray's own of the cluster whose processes have `mark` in their environment."""
    return {
        Path(found[1])
        for command in commands_of(mark)
        if (found := re.search(r"(/tmp/squadron-\w+/ray)/session_", command))
    }


def environment_of(process: Path) -> list[str]:
    try:
        return (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
