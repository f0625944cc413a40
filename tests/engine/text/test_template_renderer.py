"""Templates run in processes of their own, bounded in time and memory, and replaced when they
end.
"""

import sys
import threading
from pathlib import Path

import pytest

from engine.errors import InputProcessingError
from engine.request import ChatPrompt
from engine.text import template_process
from engine.text.template_renderer import TakesLong
from engine.text.tokenizer import Tokenizer
from tests.engine.text.tokenizers import MESSAGES, write_tokenizer

BOMBS = {
    "time": "{% set r = range(90000) | list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "size": "{% for a in range(90000) %}{{ 'x' * 100000 }}{% endfor %}",
    # In leaps, the last of which fails at once: a gigabyte that is written to may take seconds of
    # processor time.
    "memory": "{% set ns = namespace(x='x' * 10 ** 6) %}{% for i in range(9) %}{% set ns.x = ns.x * 60 %}{% endfor %}",
    "constant": "{{ 'x' * 10 ** 12 }}",
}
SHARE = 0.02  # seconds of processor time
LONG = {  # about half a second: far more than twice the share on the fastest machine
    "loop": "{% set r = range(5000) | list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "instruction": "{{ ('a' * (messages | length * 100000)).rfind('a' * 10000 + 'b' + 'a' * 10000) }}",
}
WHY = {
    "time": f"was ended after {template_process.MAX_CPU_SECONDS} s of computing",
    "size": f"makes more than {template_process.MAX_RENDERED_BYTES} bytes",
    "memory": f"takes more than {template_process.MAX_MEMORY_BYTES} bytes of memory",
    "constant": f"takes more than {template_process.MAX_MEMORY_BYTES} bytes of memory",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer's, without a template."""
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_takes_too_much_fails_its_request_alone(folder: Path, name: str) -> None:
    (folder / "chat_template.jinja").write_text(f"{{% if messages | length > 1 %}}{BOMBS[name]}{{% endif %}}ok")
    tokenizer = Tokenizer(str(folder))
    failures: list[str] = []

    def bomb() -> None:
        with pytest.raises(InputProcessingError) as caught:
            tokenizer.render_chat(ChatPrompt(MESSAGES))
        failures.append(str(caught.value))

    thread = threading.Thread(target=bomb)
    thread.start()
    assert tokenizer.render_chat(ChatPrompt(MESSAGES[:1])) == "ok"
    thread.join()
    assert tokenizer.render_chat(ChatPrompt(MESSAGES[:1])) == "ok"
    assert len(failures) == 1 and WHY[name] in failures[0]


def test_it_is_found_where_only_a_hook_finds_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install --editable`."""
    (folder / "chat_template.jinja").write_text("ok")
    elsewhere = [path for path in sys.path if path and not Path(path, "engine").is_dir()]
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.chdir(folder)
    assert Tokenizer(str(folder)).render_chat(ChatPrompt(MESSAGES)) == "ok"


def test_a_process_that_was_killed_is_replaced(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("ok")
    tokenizer = Tokenizer(str(folder))
    assert tokenizer.render_chat(ChatPrompt(MESSAGES)) == "ok"
    renderer = tokenizer._renderer
    assert renderer is not None
    renderer._idle[0]._process.kill()
    renderer._idle[0]._process.wait()
    assert tokenizer.render_chat(ChatPrompt(MESSAGES)) == "ok"


def test_a_process_may_be_there_before_the_first_conversation(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("ok")
    tokenizer = Tokenizer(str(folder))
    tokenizer.start()
    renderer = tokenizer._renderer
    assert renderer is not None
    (process,) = renderer._idle
    assert tokenizer.render_chat(ChatPrompt(MESSAGES)) == "ok"
    assert renderer._idle == [process]


@pytest.mark.parametrize(("kind", "is_kept"), [("loop", True), ("instruction", False)])
def test_a_conversation_may_be_given_a_first_share_of_time(folder: Path, kind: str, is_kept: bool) -> None:
    """It is left between two of Python's instructions, or its process is ended; and it may be
    rendered again.
    """
    template = f"{{% if messages[-1].content == 'long' %}}{LONG[kind]}{{% endif %}}ok"
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer(str(folder))
    long, short = (ChatPrompt([{"role": "user", "content": content}]) for content in ("long", "short"))
    assert tokenizer.render_chat(short, SHARE) == "ok"
    assert tokenizer._renderer is not None
    before = list(tokenizer._renderer._idle)
    with pytest.raises(TakesLong):
        tokenizer.render_chat(long, SHARE)
    assert (tokenizer._renderer._idle == before) is is_kept
    assert tokenizer.render_chat(short, SHARE) == "ok"
    assert tokenizer.render_chat(long).endswith("ok")


def test_processes_end_with_their_tokenizer(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("ok")
    tokenizer = Tokenizer(str(folder))
    tokenizer.render_chat(ChatPrompt(MESSAGES))
    assert tokenizer._renderer is not None
    process = tokenizer._renderer._idle[0]._process
    assert process.poll() is None
    del tokenizer
    assert process.returncode is not None
