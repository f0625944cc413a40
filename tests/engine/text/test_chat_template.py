"""Chat templates render as in transformers, and are found where it finds them."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.errors import InputProcessingError, InvalidConfig, InvalidRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.text.tokenizers import MESSAGES, write_settings, write_tokenizer

TEMPLATES = {
    "generation": """{% for m in messages %}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ m.role }}: {{ m.content | trim }}
{%- endif %}
{% endfor %}""",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2, ensure_ascii=True) }}"
    "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=True) }}",
    "date": "{{ strftime_now('%Y') }}{% if strftime_now is defined %} defined{% endif %}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "variables": "{{ tools is defined }}{{ tools is none }}{{ documents is none }}{{ bos_token is defined }}"
    "{{ pad_token }}{{ add_generation_prompt }}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer's, without a template."""
    write_tokenizer(tmp_path)
    return tmp_path


def theirs(folder: Path) -> str:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    rendered: str = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    return rendered


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(folder: Path, name: str) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    assert Tokenizer(str(folder)).render_chat(MESSAGES) == theirs(folder)


def test_where_a_template_is_looked_for(folder: Path) -> None:
    """Each place comes before the ones above it, as in transformers."""

    def check(expected: str) -> None:
        assert Tokenizer(str(folder)).render_chat(MESSAGES) == theirs(folder) == expected

    write_settings(folder, "settings")
    check("settings")
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    write_settings(folder, named)
    check("named")
    (folder / "chat_template.jinja").write_text("file")
    check("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    check("file")
    (folder / "additional_chat_templates" / "default.jinja").write_text("folder")
    check("folder")


@pytest.mark.parametrize("entries", [[{"name": "rag", "template": "x"}], []])
def test_without_a_default_among_named_templates_there_is_none(folder: Path, entries: list[object]) -> None:
    write_settings(folder, entries)
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(str(folder)).render_chat(MESSAGES)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}", r"chat_template is no chat template: line 1: Unexpected end of template"),
        ("\n{{ messages | nonsense }}", r"line 2: No filter named 'nonsense'"),
        ([{"name": "default"}], r"chat_template is a list of other things"),
        (7, r"chat_template holds int, not a template"),
    ],
)
def test_what_is_no_template_is_refused_in_a_line(folder: Path, template: object, message: str) -> None:
    write_settings(folder, template)
    with pytest.raises(InvalidConfig, match=message) as caught:
        Tokenizer(str(folder))
    assert "tokenizer_config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_what_a_template_complains_about_is_the_callers_error(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        Tokenizer(str(folder)).encode_chat(MESSAGES)


def test_what_a_template_trips_over_is_its_requests_own_trouble(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] / 2 }}")
    with pytest.raises(InputProcessingError, match="the chat template failed: TypeError"):
        Tokenizer(str(folder)).encode_chat(MESSAGES)
