"""What can be compiled, what is refused and why, and that no request makes another wait."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.grammars.compiler import Compiler
from engine.structured_outputs import TOO_COMPLEX, structured
from tests.engine.support.workloads import TOKENIZER

EOS = (767,)
VOCAB = 800  # more than the tokenizer's 768


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, VOCAB, EOS)


HOSTILE = {
    "all of 26 patterns": (
        "json",
        {"allOf": [{"type": "string", "pattern": f".*{letter}"} for letter in "abcdefghijklmnopqrstuvwxyz"]},
    ),
    "a multiple of a prime": ("json", {"type": "integer", "multipleOf": 999_999_937}),
}


@pytest.mark.parametrize(
    ("kind", "value", "code", "message"),
    [
        ("json", {"type": "strin"}, "invalid_json_schema", "Invalid type: strin"),
        ("json", {"$ref": "#/$defs/a"}, "invalid_json_schema", "does not exist"),
        ("json", {"$ref": "http://127.0.0.1/a"}, "invalid_json_schema", "does not fetch"),
        ("json", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "invalid_json_schema", "no answer"),
        ("json", {"enum": []}, "invalid_json_schema", "Unsatisfiable"),
        ("json", False, "invalid_json_schema", "Unsatisfiable"),
        ("json", {"type": "array", "uniqueItems": True}, "invalid_json_schema", "uniqueItems"),
        ("json", {"type": "string", "pattern": "(a"}, "invalid_json_schema", "unclosed group"),
        ("regex", "(a", "invalid_value", "unclosed group"),
        ("regex", "a(?=b)", "invalid_value", "look-around"),
        ("grammar", "start: foo", "invalid_value", "unknown name"),
        ("grammar", "(" * 3000, "invalid_value", "Expected name"),
        ("grammar", "start: a\na: b\nb: a", "invalid_value", "no answer"),
        *((*hostile, "schema_too_complex", "compile") for hostile in HOSTILE.values()),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(
    compiler: Compiler, kind: Any, value: Any, code: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        compiler.compile(structured(kind, value, "the field"))
    assert refused.value.message.startswith("the field ")
    assert (refused.value.param, refused.value.code) == ("the field", code)


def test_another_thread_goes_on_while_one_is_refused(compiler: Compiler) -> None:
    def ask() -> None:
        with pytest.raises(InvalidRequest):
            compiler.compile(structured("json", HOSTILE["all of 26 patterns"][1], ""))

    refused = threading.Thread(target=ask)
    refused.start()
    turns = 0
    while refused.is_alive():  # would end at once if the interpreter's lock were held
        turns += 1
        refused.join(0.001)
    assert turns > 10


def test_a_process_that_has_ended_is_started_again(compiler: Compiler) -> None:
    compiler.compile(structured("regex", "a", "r"))
    with compiler._trials.one() as trials:
        process = trials._process
    assert process is not None
    process.kill()
    process.wait()
    assert not compiler.compile(structured("regex", "ab", "r")).is_complete


def test_references_as_deep_as_a_stack_end_no_process_but_the_trials(compiler: Compiler) -> None:
    """What is refused is refused with an error; what passes is compiled here too."""
    for depth in (300, 600, 900, 1500):
        rules = {f"a{number}": {"allOf": [{"$ref": f"#/$defs/a{number + 1}"}]} for number in range(depth)}
        rules[f"a{depth}"] = {"type": "integer"}
        asked = structured("json", {"$ref": "#/$defs/a0", "$defs": rules}, "guided_json")
        try:
            compiler.compile(asked)
        except InvalidRequest as error:
            assert (error.code, depth > 300) == (TOO_COMPLEX, True)
    compiler.compile(structured("regex", "[0-9]", "guided_regex"))


def test_a_trial_whose_process_somebody_killed_is_made_again(compiler: Compiler) -> None:
    compiler.compile(structured("regex", "a", "r"))
    with compiler._trials.one() as trials:
        process = trials._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(compiler.compile, structured("regex", "abc", "r"))
        process.kill()
        assert not compiling.result().is_complete
