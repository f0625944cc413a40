"""Adapters by the real `openai` client, beside requests without one, and while processes are
killed.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.adapters import demo_shapes, save_adapter
from tests.end_to_end.chaos.processes import SERVING, find
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_replica_lost import engine, wait_until_healthy

DEADLINE_SECONDS = 300.0
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is 3 + 4?"}],
    "temperature": 1.0,
    "seed": 3,
    "max_tokens": 120,
    "extra_body": {"ignore_eos": True},
}


def test_they_are_listed_beside_the_model(server: Server) -> None:
    (demo, harbour) = server.client().models.list().data
    assert (demo.id, demo.parent, harbour.id, harbour.parent) == ("demo", None, "harbour", "demo")
    assert server.client().models.retrieve("harbour") == harbour


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_answers_are_the_same_whatever_is_beside_them_and_whoever_is_killed(server: Server) -> None:
    answers = {model: whole(server, model) for model in ("demo", "harbour")}
    assert answers["demo"] != answers["harbour"]
    models = ["demo", "harbour"] * 4
    with ThreadPoolExecutor(len(models)) as pool:
        assert list(pool.map(lambda model: streamed(server, model, {}), models)) == [answers[each] for each in models]
    pid = engine(server)["pid"]
    kills = {10: lambda: os.kill(find(SERVING)[0], signal.SIGKILL), 60: lambda: os.kill(pid, signal.SIGKILL)}
    assert streamed(server, "harbour", kills) == answers["harbour"]
    wait_until_healthy(server)


@pytest.mark.long
def test_one_that_is_loaded_and_unloaded_stays_with_its_stream(server: Server) -> None:
    """Also if whoever has it is killed after it is unloaded."""
    root = Path(server.args["lora_roots"][0])
    quay = save_adapter(root / "quay", demo_shapes(), rank=4, seed=2)
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:

        def change(verb: str, **body: str) -> None:
            answer = http.post(f"/v1/{verb}_lora_adapter", json={"lora_name": "quay"} | body)
            assert answer.status_code == 200, answer.text

        change("load", lora_path=quay.folder)
        assert [card.id for card in server.client().models.list().data] == ["demo", "harbour", "quay"]
        answer = whole(server, "quay")
        assert answer not in (whole(server, "demo"), whole(server, "harbour"))
        pid = engine(server)["pid"]
        disturb = {
            10: lambda: change("unload"),
            20: lambda: os.kill(find(SERVING)[0], signal.SIGKILL),
            60: lambda: os.kill(pid, signal.SIGKILL),
        }
        assert streamed(server, "quay", disturb) == answer
        wait_until_healthy(server)
        with pytest.raises(openai.NotFoundError, match='There is no model "quay" here'):
            whole(server, "quay")


def test_the_handle_answers_the_same(server: Server) -> None:
    messages = ASKED["messages"]
    asked = {name: ASKED[name] for name in ("temperature", "seed", "max_tokens")} | {"ignore_eos": True}
    answer = server.handle.chat.remote({"model": "harbour", "messages": messages} | asked).result()
    assert answer["outputs"][0]["text"] == whole(server, "harbour")


def whole(server: Server, model: str) -> str:
    answer = server.client(timeout=DEADLINE_SECONDS).chat.completions.create(model=model, **ASKED)
    assert answer.model == model
    return str(answer.choices[0].message.content)


def streamed(server: Server, model: str, disturb: dict[int, Callable[[], object]]) -> str:
    """`disturb`: what is done after so many chunks."""
    text = ""
    chunks = server.client(timeout=DEADLINE_SECONDS).chat.completions.create(model=model, stream=True, **ASKED)
    for number, chunk in enumerate(chunks):
        assert chunk.model == model
        text += chunk.choices[0].delta.content or ""
        disturb.get(number, lambda: None)()
    assert number > max(disturb, default=0)
    return text
