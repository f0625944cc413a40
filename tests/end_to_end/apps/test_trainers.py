"""Another Ray job changes the weights of an application with two engine replicas."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import ray
from ray import serve
from torch import Tensor

from cluster.launch.packages import ROOT
from cluster.llm import LLM
from cluster.sockets import LOOPBACK
from engine.sampling_params import SamplingParams
from tests.corruptions import DEMO
from tests.documents.snippets import snippet
from tests.end_to_end.apps.trainer import Trainer, described
from tests.end_to_end.chaos.app import App, app_args, running
from tests.end_to_end.test_replica_lost import wait_until
from tests.perturbed import save_perturbed

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's, of its processes that still run
SECONDS = 300.0
PROMPT = "Tell a long story about manta rays. " * 3
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 3, "ignore_eos": True}
ASKED = {"prompt": PROMPT, "max_tokens": 24, **SAMPLING}
LONG = 600  # tokens


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running(app_args({"num_threads": 1}, recovers=True, num_engines=2, enable_sleep_mode=True)) as app:
        wait_until(lambda: len(engines(app)) == 2, "a gateway does not know both replicas")
        yield app


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("perturbed")
    return folder, save_perturbed(folder)


@pytest.fixture(scope="module")
def expected(perturbed: tuple[Path, dict[str, Tensor]]) -> dict[str, list[int]]:
    """The tokens of engines that were started with either."""
    told = {}
    for version, model in (("own", DEMO), ("new", perturbed[0])):
        with LLM(model=str(model), device="cpu", num_threads=1, kv_cache_memory_bytes=16 << 20) as llm:
            (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=LONG, **SAMPLING), use_tqdm=False)
            told[version] = output.outputs[0].token_ids
    assert told["own"][:24] != told["new"][:24]
    return told


def engines(app: App) -> list[dict[str, Any]]:
    """Their last reports."""
    told: list[dict[str, Any]] = httpx.get(f"{app.url}/debug/engines", timeout=SECONDS).json()["engines"]
    return told


def handle() -> Any:
    return serve.get_app_handle("squadron")


def update(**request: Any) -> dict[str, Any]:
    told: dict[str, Any] = handle().update_weights.remote(request).result(timeout_s=SECONDS)
    return told


def check(expected: dict[str, list[int]], version: str, *, times: int = 3) -> None:
    """All replicas answer by that version; one more often than there are replicas."""
    for _ in range(times):
        answer = handle().generate.remote(ASKED).result(timeout_s=SECONDS)
        assert answer["error"] is None
        assert (answer["weights_version"], answer["outputs"][0]["token_ids"]) == (version, expected[version][:24])


def put(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: ray.put(tensor) for name, tensor in tensors.items()}


@pytest.mark.long
def test_every_replica_has_them_and_so_has_one_that_starts_later(
    app: App, expected: dict[str, list[int]], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    folder, tensors = perturbed
    own = engines(app)[0]["fingerprint"]
    for request in ({"path": str(folder)}, {"weights": put(tensors)}):
        told = update(version="new", **request)
        assert (told["error"], told["weights_version"], told["num_replicas"]) == (None, "new", 2)
        assert told["system_fingerprint"] != own
        check(expected, "new")
        body = {"model": "demo", "prompt": "one", "max_tokens": 2}
        over_http = httpx.post(f"{app.url}/v1/completions", json=body, timeout=SECONDS).json()
        assert over_http["weights_version"] == "new"
        assert over_http["system_fingerprint"] == told["system_fingerprint"]

        victim = engines(app)[0]
        os.kill(victim["pid"], signal.SIGKILL)
        check(expected, "new")
        wait_until(lambda victim=victim: are_whole(app, victim["pid"]), "no replica came in its place")
        assert {engine["weights_version"] for engine in engines(app)} == {"new"}
        check(expected, "new")
        assert update(path=str(DEMO), version="own")["error"] is None
        check(expected, "own")


def are_whole(app: App, but: int) -> bool:
    told = engines(app)
    return len(told) == 2 and all(engine["problem"] is None and engine["pid"] != but for engine in told)


def test_what_is_refused_changes_nothing(
    app: App, expected: dict[str, list[int]], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    _, tensors = perturbed
    assert update(path=str(DEMO), version="own")["error"] is None
    refs, norm = put(tensors), tensors["model.norm.weight"]
    for request, message in [
        ({"weights": refs | {"model.norm.weight": ray.put(norm[:5])}}, "norm.weight has shape [5], not [256]"),
        ({"weights": refs | {"model.norm.weight": ray.put(norm * float("nan"))}}, "norm.weight holds NaN or inf"),
        ({"weights": {"model.norm.weight": refs["model.norm.weight"]}}, "is missing"),
        ({"weights": {"model.norm.weight": 1}}, "it is to be an ObjectRef"),
        ({"path": "/nowhere"}, "path='/nowhere' is no folder here"),
        ({"path": "here"}, "path='here' is not an absolute path"),
        ({}, "a change has one of path, weights, tensors; this one has none"),
        ({"path": str(DEMO), "mode": "later"}, "mode='later' is none of abort, wait, keep"),
        ({"path": str(DEMO), "verson": "1"}, "unknown field 'verson'"),
    ]:
        told = update(**request)
        assert message in told["error"]["message"]
        assert told["error"]["type"] == "invalid_request_error"
    check(expected, "own")


def test_every_replica_has_what_is_broadcast(
    app: App, expected: dict[str, list[int]], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    assert update(path=str(DEMO), version="own")["error"] is None
    _, tensors = perturbed
    told = Trainer().update(tensors, described(tensors), version="new")
    assert (told["error"], told["weights_version"], told["num_replicas"]) == (None, "new", 2)
    check(expected, "new")


def test_each_answer_is_wholly_of_one_version_while_they_change(
    app: App, expected: dict[str, list[int]], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    """Also with a long answer that a replica waits for, so that the other one changes before."""
    assert update(path=str(DEMO), version="own")["error"] is None
    seen, over = [], threading.Event()

    def ask_again_and_again() -> None:
        while not over.is_set():
            seen.append(handle().generate.remote(ASKED).result(timeout_s=SECONDS))

    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask_again_and_again) for _ in range(2)]
        long = handle().generate.remote(ASKED | {"max_tokens": LONG})
        wait_until(lambda: len(seen) > 2, "nothing was answered")
        assert update(path=str(perturbed[0]), version="new", mode="wait")["error"] is None
        seen_before = len(seen)
        wait_until(lambda: len(seen) > seen_before + 4, "nothing was answered after it")
        over.set()
        for each in asking:
            each.result(SECONDS)
    whole = long.result(timeout_s=SECONDS)
    assert (whole["weights_version"], whole["outputs"][0]["token_ids"]) == ("own", expected["own"])
    for answer in seen:
        assert answer["outputs"][0]["token_ids"] == expected[answer["weights_version"]][:24]
    assert {answer["weights_version"] for answer in seen} == {"own", "new"}
    check(expected, "new")


def test_streams_that_are_paused_go_on(app: App, expected: dict[str, list[int]], perturbed: Any) -> None:
    assert update(path=str(DEMO), version="own")["error"] is None
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        body: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "max_tokens": LONG, "stream": True}
        extra = {"ignore_eos": True, "return_token_ids": True}
        sampling = {"temperature": 0.8, "seed": 3}

        def chunks(during: Any) -> tuple[list[int], list[Any]]:
            token_ids, versions = [], []
            for number, chunk in enumerate(client.completions.create(**body, **sampling, extra_body=extra)):
                if number == 3:
                    during()
                for choice in chunk.choices:
                    token_ids += choice.token_ids
                versions.append((chunk.weights_version, chunk.system_fingerprint))
            return token_ids, versions

        def pause_and_resume() -> None:
            post = f"{app.url}/pause?mode=keep"
            assert httpx.post(post, timeout=SECONDS).json() == {"status": "paused"}
            assert httpx.get(f"{app.url}/is_paused", timeout=SECONDS).json() == {"is_paused": True}
            assert httpx.post(f"{app.url}/resume", timeout=SECONDS).json() == {"status": "resumed"}

        token_ids, versions = chunks(pause_and_resume)
        assert token_ids == expected["own"]
        assert len(set(versions)) == 1

        token_ids, versions = chunks(lambda: update(path=str(perturbed[0]), version="new", mode="keep"))
        assert len(token_ids) == LONG
        assert token_ids[:3] == expected["own"][:3]
        assert [version for version, _ in (versions[0], versions[-1])] == ["own", "new"]
        assert len(set(versions)) == 2
    check(expected, "new")


def test_sleep_over_http(app: App, expected: dict[str, list[int]]) -> None:
    assert update(path=str(DEMO), version="own")["error"] is None
    for level in (1, 2):
        told = httpx.post(f"{app.url}/sleep", params={"level": level}, timeout=SECONDS).json()
        assert told == {"status": "sleeping", "level": level}
        assert httpx.get(f"{app.url}/is_sleeping", timeout=SECONDS).json() == {"is_sleeping": True}
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(check, expected, "own", times=1)
            assert httpx.post(f"{app.url}/wake_up", timeout=SECONDS).json()["status"] == "awake"
            asked.result(SECONDS)
    refused = httpx.post(f"{app.url}/sleep", params={"level": 3}, timeout=SECONDS)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")
    assert httpx.post(f"{app.url}/pause", params={"model": "x"}, timeout=SECONDS).status_code == 404


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "asked", "until", "state"),
    [
        ("sleep", {"level": 2, "mode": "keep"}, "wake_up", {"is_paused": False, "is_sleeping": True}),
        ("pause", {"mode": "keep"}, "resume", {"is_paused": True, "is_sleeping": False}),
    ],
)
def test_replicas_that_start_meanwhile_do_what_the_lost_ones_did(
    app: App, expected: dict[str, list[int]], what: str, asked: dict[str, Any], until: str, state: dict[str, bool]
) -> None:
    """They keep an answer that has begun and a request that has come; asleep they have no workers,
    whose memory may be somebody else's.
    """
    assert update(path=str(DEMO), version="own")["error"] is None
    begun = handle().generate.remote(ASKED | {"max_tokens": LONG})
    wait_until(lambda: any(each["stats"]["num_requests_running"] for each in engines(app)), "it has not begun")
    assert getattr(handle(), what).remote(asked).result(timeout_s=SECONDS) == {"error": None}
    lost = {each["pid"] for each in engines(app)}
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    waits = handle().generate.remote(ASKED)
    wait_until(lambda: len(engines(app)) == 2 and not lost & {each["pid"] for each in engines(app)}, "they stay lost")
    wait_until(lambda: all(each["is_frozen"] for each in engines(app)), "they run")
    assert handle().control_state.remote().result(timeout_s=SECONDS) == state | {"error": None}
    replicas = serve.get_deployment_handle("EngineDeployment", "squadron")
    num_workers = [len(pids) for _, pids in replicas.broadcast("worker_pids").results(timeout_s=SECONDS)]
    assert num_workers == [0 if what == "sleep" else 1] * 2
    assert getattr(handle(), until).remote().result(timeout_s=SECONDS) == {"error": None}
    for answer, num_tokens in ((begun, LONG), (waits, ASKED["max_tokens"])):
        told = answer.result(timeout_s=SECONDS)
        assert (told["error"], told["outputs"][0]["token_ids"]) == (None, expected["own"][:num_tokens])


@pytest.mark.long
def test_what_the_documents_show(
    app: App, expected: dict[str, list[int]], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    """Each by itself: a folder of this machine is in place of the page's."""
    folder, tensors = perturbed
    weights = snippet("docs/trainers.md", "/checkpoints/step-7")
    code = weights.text.replace("/checkpoints/step-7", str(folder))
    names: dict[str, Any] = {"ray": ray, "serve": serve, "model": SimpleNamespace(state_dict=lambda: tensors)}
    exec(compile(code, weights.page, "exec"), names)
    assert names["told"]["error"] is None
    broadcast = snippet("docs/trainers.md", "init_weights_update_group").text.replace("10.0.0.5", LOOPBACK)
    exec(compile(broadcast, weights.page, "exec"), names)
    assert (names["told"]["error"], names["told"]["weights_version"]) == (None, "step-8")
    exec(compile(snippet("docs/trainers.md", "handle.sleep.remote").text, weights.page, "exec"), names)
    assert update(path=str(DEMO), version="own")["error"] is None
    check(expected, "own")


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("rollout.py", ["--model", str(DEMO)]),
        ("rollout.py", ["--model", str(DEMO), "--broadcast", LOOPBACK]),
        ("ray_data.py", []),
    ],
)
def test_examples_run(app: App, example: str, options: list[str], tmp_path: Path) -> None:
    assert update(path=str(DEMO), version="own")["error"] is None
    command = [sys.executable, str(ROOT / "configs" / "examples" / example), "--address", app.ray.address, *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | app.ray.environment
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    if example == "rollout.py":
        assert [each["weights_version"] for each in told] == ["step-1", "step-2"]
        assert len({each["system_fingerprint"] for each in told}) == 2
    else:
        assert {each["question"]: each["answer"] for each in told}["What is 17 + 25?"] == "42"
