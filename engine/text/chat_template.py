"""A checkpoint's chat template: where it is kept, and the Jinja environment that templates are
written for.
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidConfig

DEFAULT = "default"  # the name of the template for conversations without tools


def find_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The template's source, looked for as transformers does; None if there is none of that name.

    chat_template.jinja and additional_chat_templates/NAME.jinja come before tokenizer_config.json
    (`settings`), which holds one template or a list of named ones. Raises InvalidConfig for one
    that is not a template.
    """
    files = [(DEFAULT, folder / "chat_template.jinja")]
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    named = {name: path for name, path in files if path.exists()}
    if named:
        where = named.get(DEFAULT)
        return None if where is None else _checked(_read(where), str(where))
    where = folder / "tokenizer_config.json"
    source = _from_settings(settings.get("chat_template"), str(where))
    return None if source is None else _checked(source, f"{where}: chat_template")


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment of transformers' `apply_chat_template`: its filters, functions and tags."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


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


def _from_settings(value: Any, where: str) -> str | None:
    if isinstance(value, list):
        try:
            value = {entry["name"]: entry["template"] for entry in value}
        except (KeyError, TypeError):
            raise InvalidConfig(f"{where}: chat_template is a list of other things than names and templates") from None
    if isinstance(value, dict):
        value = value.get(DEFAULT)
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"{where}: chat_template holds {type(value).__name__}, not a template")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from None


def _checked(source: str, where: str) -> str:
    environment = make_environment()
    environment.optimized = False  # otherwise constant expressions would be evaluated here, at any cost
    try:
        environment.compile(source, raw=True)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidConfig(f"{where} is no chat template: line {error.lineno}: {error.message}") from None
    except Exception as error:  # for example nested too deeply
        raise InvalidConfig(f"{where} is no chat template: {type(error).__name__}: {error}") from None
    return source


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """In place of Jinja's own filter, which escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
