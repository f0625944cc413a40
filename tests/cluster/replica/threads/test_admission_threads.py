"""Requests are added beside the event loop, and long prompts beside short ones."""

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from cluster.replica.threads.admission_threads import LONG_PROMPT, AdmissionThreads
from engine.errors import EngineDead, InputProcessingError, InvalidRequest
from engine.request import ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams
from engine.text.prompt import arrive
from engine.text.template_process import MAX_CPU_SECONDS
from engine.text.tokenizer import Tokenizer
from tests.engine.text.tokenizers import write_tokenizer

SECONDS = 60
LOOP = "{% set r = range(90000) | list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"
# One instruction of Python's, for half a second.
SEARCH = "{{ ('a' * (messages | length * 100000)).rfind('a' * 10000 + 'b' + 'a' * 10000) }}"
LONG = "x" * (LONG_PROMPT + 1)


class Engine:
    """Takes as long over a long prompt as it is let."""

    def __init__(self) -> None:
        self.is_let = threading.Event()
        self.threads: dict[str, str] = {}

    def compiles(self, request: Request) -> bool:
        return request.id.startswith("schema")

    def add_request(self, request: Request, template_seconds: float | None = None) -> None:
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


def test_who_waits_as_the_threads_are_closed_hears_of_it() -> None:
    engine: Any = Engine()
    admissions = AdmissionThreads(engine)
    long, waiting = (admissions.add(request(name, LONG)) for name in ("long", "waiting"))
    admissions.close()
    with pytest.raises(EngineDead, match="shut down"):
        waiting.result(SECONDS)
    with pytest.raises(EngineDead, match="shut down"):
        admissions.add(request("late")).result(SECONDS)
    engine.is_let.set()
    long.result(SECONDS)


def test_what_nobody_wants_any_more_is_not_begun() -> None:
    engine: Any = Engine()
    admissions = AdmissionThreads(engine)
    long, unwanted, last = (admissions.add(request(name, LONG)) for name in ("long", "unwanted", "last"))
    unwanted.cancel()
    assert not unwanted.done()  # it may just have been begun: what follows its end comes after it
    engine.is_let.set()
    last.result(SECONDS)
    assert long.done() and isinstance(unwanted.exception(SECONDS), CancelledError)
    assert "unwanted" not in engine.threads
    admissions.close()


def test_a_conversation_does_not_wait_for_those_that_make_the_template_loop(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        f"{{% if messages[-1].content == 'loop' %}}{LOOP}{{% elif messages[-1].content == 'search' %}}{SEARCH}"
        "{% else %}{{ messages[-1].content }}{% endif %}"
    )
    engine: Any = Rendering(Tokenizer(str(tmp_path)))
    admissions = AdmissionThreads(engine)
    try:
        kinds = ["loop"] * 14 + ["search"] * 2
        hostile = [admissions.add(chat(f"{kind}-{number}", kind)) for number, kind in enumerate(kinds)]
        admissions.add(chat("innocent", "hello")).result(SECONDS)
        assert engine.added == ["innocent"]
        assert not any(admission.done() for admission in hostile)
    finally:
        admissions.close()
    (ended,) = [error for error in (one.exception(SECONDS) for one in hostile) if not isinstance(error, EngineDead)]
    assert isinstance(ended, InputProcessingError) and f"after {MAX_CPU_SECONDS} s of computing" in str(ended)


class Rendering:
    """Renders conversations, as the engine does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added: list[str] = []

    def compiles(self, request: Request) -> bool:
        return False

    def add_request(self, request: Request, template_seconds: float | None = None) -> None:
        arrive(request, self._tokenizer, 1 << 20, template_seconds)
        self.added.append(request.id)


def chat(request_id: str, content: str) -> Request:
    return request(request_id, ChatPrompt([{"role": "user", "content": content}]))
