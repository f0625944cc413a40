"""Requests are added beside the event loop, and long prompts beside short ones."""

import threading
from typing import Any

import pytest

from cluster.replica.admission_threads import LONG_PROMPT, AdmissionThreads
from engine.errors import InvalidRequest
from engine.request import ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams

SECONDS = 30
LONG = "x" * (LONG_PROMPT + 1)


class Engine:
    """Takes as long over a long prompt as it is let."""

    def __init__(self) -> None:
        self.is_let = threading.Event()
        self.threads: dict[str, str] = {}

    def compiles(self, request: Request) -> bool:
        return request.id.startswith("schema")

    def add_request(self, request: Request) -> None:
        self.threads[request.id] = threading.current_thread().name
        if request.id == "wrong":
            raise InvalidRequest("it is wrong")
        if request.id == "long":
            assert self.is_let.wait(SECONDS)


def request(request_id: str, prompt: Prompt = "x") -> Request:
    return Request(request_id, prompt, SamplingParams())


@pytest.mark.parametrize("prompt", [LONG, ChatPrompt([{"role": "user", "content": LONG}])], ids=["text", "chat"])
def test_short_prompts_do_not_wait_for_a_long_one(prompt: Prompt) -> None:
    engine: Any = Engine()
    admissions = AdmissionThreads(engine)
    try:
        long = admissions.add(request("long", prompt))
        for number in range(3):
            admissions.add(request(f"short-{number}")).result(SECONDS)
        admissions.add(request("ids", [1] * (LONG_PROMPT + 1))).result(SECONDS)  # nothing to tokenize
        assert not long.done()
        engine.is_let.set()
        long.result(SECONDS)
    finally:
        engine.is_let.set()
        admissions.close()
    names = {request_id: name.rpartition("_")[0] for request_id, name in engine.threads.items()}
    assert names.pop("long") == "long-admissions" and set(names.values()) == {"admissions"}


def test_what_the_engine_refuses_is_raised() -> None:
    engine: Any = Engine()
    admissions = AdmissionThreads(engine)
    with pytest.raises(InvalidRequest, match="it is wrong"):
        admissions.add(request("wrong")).result(SECONDS)
    admissions.close()


def test_only_a_grammar_that_is_to_be_compiled_waits_for_others() -> None:
    engine: Any = Engine()
    admissions = AdmissionThreads(engine)
    for name in ("schema", "kept", "plain"):
        admissions.add(request(name)).result(SECONDS)
    admissions.close()
    names = {request_id: name.rpartition("_")[0] for request_id, name in engine.threads.items()}
    assert names == {"schema": "compiling-admissions", "kept": "admissions", "plain": "admissions"}
