"""Requests are added beside the event loop, and long prompts beside short ones."""

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from cluster.replica.threads.admission_threads import LONG_PROMPT, MAX_LONG_GRAMMARS, AdmissionThreads
from engine.errors import EngineDead, InputProcessingError, InvalidRequest, Overloaded
from engine.grammars.interface import GrammarTakesLong
from engine.grammars.kept import Grammars
from engine.request import NEW, ChatPrompt, Prompt, Request, Resume, Share
from engine.sampling_params import SamplingParams
from engine.structured_outputs import structured
from engine.text.prompt import arrive
from engine.text.template_process import MAX_CPU_SECONDS
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import TOKENIZER
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

    def add_request(
        self, request: Request, template_seconds: float | None = None, grammar_seconds: float | None = None
    ) -> None:
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


def test_a_form_does_not_wait_for_those_that_take_long_to_compile() -> None:
    engine: Any = Compiling()
    admissions = AdmissionThreads(engine)
    try:
        hostile = [admissions.add(formed(f"hostile-{number}", letters(26 - number))) for number in range(4)]
        admissions.add(formed("innocent", {"type": "integer"})).result(SECONDS)
        assert engine.added == ["innocent"]
        assert not hostile[-1].done()
        with pytest.raises(InvalidRequest, match="takes more than 1 s of computing"):
            hostile[0].result(SECONDS)
    finally:
        admissions.close()


def test_a_key_that_has_many_forms_that_take_long_is_refused_more() -> None:
    engine: Any = Long()
    admissions = AdmissionThreads(engine)
    try:
        many = [admissions.add(of_key(f"{number}", "one")) for number in range(3 * MAX_LONG_GRAMMARS)]
        refused = many[MAX_LONG_GRAMMARS:]
        for admission in refused:
            assert isinstance(admission.exception(SECONDS), Overloaded)
        assert not any(admission.done() for admission in many[:MAX_LONG_GRAMMARS])
        other = admissions.add(of_key("other", "two"))
        on = admissions.add(of_key("on", "one", Resume(output_ids=((1,),))))
        engine.is_let.set()
        for admission in (*many[:MAX_LONG_GRAMMARS], other, on):
            admission.result(SECONDS)
        admissions.add(of_key("later", "one")).result(SECONDS)
    finally:
        engine.is_let.set()
        admissions.close()


class Long:
    """Its grammars take long."""

    def __init__(self) -> None:
        self.is_let = threading.Event()

    def compiles(self, request: Request) -> bool:
        return True

    def add_request(
        self, request: Request, template_seconds: float | None = None, grammar_seconds: float | None = None
    ) -> None:
        if grammar_seconds is not None:
            raise GrammarTakesLong
        assert self.is_let.wait(SECONDS)


def of_key(request_id: str, key: str, resume: Resume = NEW) -> Request:
    return Request(request_id, "x", SamplingParams(), share=Share(key), resume=resume)


class Compiling:
    """Compiles grammars, as the engine does."""

    def __init__(self) -> None:
        self._grammars = Grammars(TOKENIZER, 768, (767,))
        self.added: list[str] = []

    def compiles(self, request: Request) -> bool:
        return True

    def add_request(
        self, request: Request, template_seconds: float | None = None, grammar_seconds: float | None = None
    ) -> None:
        assert request.params.structured_outputs is not None
        self._grammars.matcher(request.params.structured_outputs, first_seconds=grammar_seconds)
        self.added.append(request.id)


def formed(request_id: str, schema: dict[str, Any]) -> Request:
    return Request(request_id, "x", SamplingParams(structured_outputs=structured("json", schema, "schema")))


def letters(count: int) -> dict[str, Any]:
    """Texts that have all of the first so many letters: 26 take minutes."""
    return {"allOf": [{"type": "string", "pattern": f".*{letter}"} for letter in ascii_lowercase[:count]]}


class Rendering:
    """Renders conversations, as the engine does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added: list[str] = []

    def compiles(self, request: Request) -> bool:
        return False

    def add_request(
        self, request: Request, template_seconds: float | None = None, grammar_seconds: float | None = None
    ) -> None:
        arrive(request, self._tokenizer, 1 << 20, template_seconds)
        self.added.append(request.id)


def chat(request_id: str, content: str) -> Request:
    return request(request_id, ChatPrompt([{"role": "user", "content": content}]))
