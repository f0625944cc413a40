"""Chat templates render as in transformers, and are found where it finds them."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.errors import InputProcessingError, InvalidConfig, InvalidRequest
from engine.request import ChatPrompt
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import DEMO
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
    assert Tokenizer(str(folder)).render_chat(ChatPrompt(MESSAGES)) == theirs(folder)


def test_where_a_template_is_looked_for(folder: Path) -> None:
    """Each place comes before the ones above it, as in transformers."""

    def check(expected: str) -> None:
        assert Tokenizer(str(folder)).render_chat(ChatPrompt(MESSAGES)) == theirs(folder) == expected

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


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}], "default, only rag, tool_use"),
        ([], "no chat template; use completions"),
    ],
)
def test_without_a_default_among_named_templates_there_is_none(folder: Path, entries: list[object], said: str) -> None:
    write_settings(folder, entries)
    with pytest.raises(InvalidRequest, match=said):
        Tokenizer(str(folder)).render_chat(ChatPrompt(MESSAGES))
    (folder / "chat_template.jinja").write_text("chosen")
    assert Tokenizer(str(folder)).render_chat(ChatPrompt(MESSAGES)) == "chosen"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}", r"chat_template is no chat template: line 1: Unexpected end of template"),
        ("\n{{ messages | nonsense }}", r"line 2: No filter named 'nonsense'"),
        ("{{ messages is nonsense }}", r"line 1: No test named 'nonsense'"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", r"it is nested too deeply"),
        ([{"name": "default"}], r"chat_template is a list of other things"),
        (7, r"chat_template holds int, not a template"),
    ],
)
def test_what_is_no_template_is_refused_in_a_line(folder: Path, template: object, message: str) -> None:
    write_settings(folder, template)
    with pytest.raises(InvalidConfig, match=message) as caught:
        Tokenizer(str(folder))
    assert "tokenizer_config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_templates_expressions_are_not_evaluated_before_it_is_rendered(folder: Path) -> None:
    """By the limited process alone: this one would take all memory."""
    (folder / "chat_template.jinja").write_text("{% if messages %}{{ 'a' * 10**15 }}{% endif %}{{ 7 | abs | int }}")
    tokenizer = Tokenizer(str(folder))
    with pytest.raises(InputProcessingError, match="bytes of memory"):
        tokenizer.render_chat(ChatPrompt(MESSAGES))


def test_what_a_template_complains_about_is_the_callers_error(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        Tokenizer(str(folder)).encode_chat(ChatPrompt(MESSAGES))


def test_what_a_template_trips_over_is_its_requests_own_trouble(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] / 2 }}")
    with pytest.raises(InputProcessingError, match="the chat template failed: TypeError"):
        Tokenizer(str(folder)).encode_chat(ChatPrompt(MESSAGES))


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = """{% if tools %}Call in <tool_call></tool_call>: {{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] -%}
{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}{{ mood }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.mark.parametrize("mood", [None, "!"])
def test_tools_and_variables_render_as_in_transformers(folder: Path, mood: str | None) -> None:
    (folder / "chat_template.jinja").write_text(WITH_TOOLS)
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": "ä"}}}
    messages = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
    variables = {} if mood is None else {"mood": mood, "add_generation_prompt": False}
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    expected = tokenizer.apply_chat_template(
        messages, tools=TOOLS, tokenize=False, **{"add_generation_prompt": True} | variables
    )
    ours = Tokenizer(str(folder))
    assert ours.render_chat(ChatPrompt(messages, TOOLS, variables)) == expected
    assert ours.tool_format == "hermes"


CUT = '{"city": "O\'Hare", "at": [1, 2, {"a": "unfinishe'
BY_TYPE = """{% for m in messages %}{% for call in m.tool_calls or [] -%}
{% if call.function.arguments is string %}{{ call.function.arguments }}
{%- elif call.function.arguments is mapping %}{{ call.function.arguments | tojson }}{% endif %}
{%- endfor %}{% endfor %}"""
BY_PAIR = """{% for m in messages %}{% for call in m.tool_calls or [] -%}
{% for name, value in call.function.arguments | items %}<{{ name }}>{{ value }}{% endfor %}
{%- for name, value in call.function.arguments.items() %}[{{ name }}]{% endfor %}
{%- endfor %}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (WITH_TOOLS, f"user: Hello\nassistant: f({CUT})\n"),
        (BY_TYPE, CUT),
        (BY_PAIR, "<city>O'Hare<at>[1, 2, {'a': 'unfinishe'}][city][at]"),
        ((Path(DEMO) / "chat_template.jinja").read_text(), f'{{"name": "f", "arguments": {CUT}}}\n</tool_call>'),
    ],
    ids=["as JSON", "by type", "by pair", "demo"],
)
def test_arguments_that_were_cut_off_are_shown_as_they_are(folder: Path, template: str, shown: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": CUT}}
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert shown in Tokenizer(str(folder)).render_chat(ChatPrompt(messages))


@pytest.mark.parametrize("shown", ["m.content", "m.content | trim"])
@pytest.mark.parametrize("content", ["It is", " It is \n", "system", "<", "/s>", "s", "[assistant] "])
def test_a_final_message_is_continued_as_in_transformers(folder: Path, content: str, shown: str) -> None:
    """Also one whose text is in what the template puts behind it."""
    template = f"{{% for m in messages %}}[{{{{ m.role }}}}] {{{{ {shown} }}}}</s>{{% endfor %}}"
    (folder / "chat_template.jinja").write_text(template)
    messages = [*MESSAGES, {"role": "assistant", "content": content}]
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    expected = tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    prompt = ChatPrompt(messages, variables={"add_generation_prompt": False}, continues=True)
    assert Tokenizer(str(folder)).render_chat(prompt) == expected


def test_a_final_message_that_the_template_changes_cannot_be_continued(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content | upper }}")
    with pytest.raises(InvalidRequest, match="changes the final message"):
        Tokenizer(str(folder)).render_chat(ChatPrompt([{"role": "assistant", "content": "it"}], continues=True))


def test_requests_with_tools_have_a_template_of_their_own_if_there_is_one(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "{{ tools[0].function.name }}<function="}]
    write_settings(folder, [*named, {"name": "default", "template": "none"}])
    tokenizer = Tokenizer(str(folder))
    assert tokenizer.render_chat(ChatPrompt(MESSAGES, TOOLS)) == "f<function="
    assert tokenizer.render_chat(ChatPrompt(MESSAGES)) == "none"
    assert tokenizer.tool_format == "qwen3_coder"
    write_settings(folder, "one for all")
    tokenizer = Tokenizer(str(folder))
    assert (tokenizer.render_chat(ChatPrompt(MESSAGES, TOOLS)), tokenizer.tool_format) == ("one for all", None)
