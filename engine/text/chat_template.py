"""A checkpoint's chat template: where it is kept, and the Jinja environment that templates are
written for.
"""

import json
from collections.abc import Callable, Container, ItemsView
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic_core import from_json

from engine.errors import InvalidConfig

DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates; the latter, if it is there, for requests with tools
NAMES = (DEFAULT, TOOL_USE)


def find_templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The sources of the templates DEFAULT and TOOL_USE, as far as there are any, looked for as
    transformers does.

    chat_template.jinja and additional_chat_templates/NAME.jinja come before tokenizer_config.json
    (`settings`), which holds one template or a list of named ones. Raises InvalidConfig for one
    that is not a template.
    """
    if files := _template_files(folder):
        return {name: _checked(_read(files[name]), str(files[name])) for name in NAMES if name in files}
    where = _where(folder)
    sources = _from_settings(settings, where)
    return {name: _checked(sources[name], where) for name in NAMES if name in sources}


def template_names(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Of all templates there, used or not. Raises InvalidConfig."""
    return list(_template_files(folder) or _from_settings(settings, _where(folder)))


def tool_format(source: str) -> Literal["hermes", "qwen3_coder"] | None:
    """In which form a template shows the model how tools are called."""
    if "<function=" in source:
        return "qwen3_coder"
    return "hermes" if "<tool_call>" in source else None


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment of transformers' `apply_chat_template`: its filters, functions and tags."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    plain_items = environment.filters["items"]
    environment.filters["items"] = lambda value: plain_items(
        as_far_as_read(value) if isinstance(value, RawArguments) else value
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class RawArguments(str):
    """Of a tool call, if they are no JSON, as those of an answer that was cut off in them.
    Templates show other calls' arguments by `tojson`, as a text or pair by pair: this text is shown
    as it is, and has the pairs that can be read of it.
    """

    def items(self) -> ItemsView[str, Any]:
        return as_far_as_read(self).items()


def as_far_as_read(arguments: str) -> dict[str, Any]:
    """The object that a call's arguments are: as much of it as there is, if the answer was cut off
    in it; none if they are something else, which a model may write that was not forced to. Half of
    a surrogate pair, which no text may hold, is a question mark.
    """
    try:
        value = json.loads(arguments, strict=False)  # a line end in a string is a line end
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except RecursionError:
        return {}
    except ValueError:
        try:
            value = from_json(arguments, allow_partial="trailing-strings")
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def mark_raw(messages: list[dict[str, Any]]) -> None:
    """In place: arguments that are a text."""
    for message in messages:
        match message:
            case {"tool_calls": [*calls]}:
                for call in calls:
                    match call:
                        case {"function": {"arguments": str() as text} as function}:
                            function["arguments"] = RawArguments(text)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it renders as what is
    in it.
    """

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def _template_files(folder: Path) -> dict[str, Path]:
    files = [(DEFAULT, folder / "chat_template.jinja")]
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    return {name: path for name, path in files if path.exists()}


def _where(folder: Path) -> str:
    return f"{folder / 'tokenizer_config.json'}: chat_template"


def _from_settings(settings: dict[str, Any], where: str) -> dict[str, str]:
    value = settings.get("chat_template")
    if isinstance(value, list):
        try:
            value = {entry["name"]: entry["template"] for entry in value}
        except (KeyError, TypeError):
            raise InvalidConfig(f"{where} is a list of other things than names and templates") from None
    if not isinstance(value, dict):
        value = {DEFAULT: value}
    found = {str(name): source for name, source in value.items() if source is not None}
    for name in NAMES:
        if not isinstance(source := found.get(name, ""), str):
            raise InvalidConfig(f"{where} holds {type(source).__name__}, not a template")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from None


def _checked(source: str, where: str) -> str:
    """Parsed, and not compiled, which would evaluate constant expressions at any cost."""
    environment = make_environment()
    try:
        tree = environment.parse(source)
        for used in tree.find_all(nodes.Filter):
            _check_name("filter", used, environment.filters)
        for asked in tree.find_all(nodes.Test):
            _check_name("test", asked, environment.tests)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidConfig(f"{where} is no chat template: line {error.lineno}: {error.message}") from None
    except RecursionError:
        raise InvalidConfig(f"{where} is no chat template: it is nested too deeply") from None
    return source


def _check_name(kind: str, used: nodes.Filter | nodes.Test, known: Container[str]) -> None:
    if used.name not in known:
        raise jinja2.TemplateSyntaxError(f"No {kind} named {used.name!r}.", used.lineno)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """In place of Jinja's own filter, which escapes HTML."""
    if isinstance(value, RawArguments):
        return str(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
