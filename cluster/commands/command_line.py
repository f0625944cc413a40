"""Parses the arguments of every `squadron` command: one error line per mistake, and the same
options for a server's address.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

from cluster.api.keys.key_ring import API_KEY_VARIABLE
from engine.config import ABSENT

LOCAL_SERVER = "http://127.0.0.1:8000"


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line and name the option that was probably meant."""

    def parse_known_args(  # type: ignore[override]  # only this overload is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # otherwise most options are for the command's own parser
            self._refuse_unknown_options(given)
        found, rest = super().parse_known_args(given, namespace or argparse.Namespace())
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _refuse_unknown_options(self, given: Sequence[str]) -> None:
        """Checked before anything else, because a misspelt option makes other arguments look
        wrong.
        """
        known = list(self._option_string_actions)
        for argument in given[: given.index("--") if "--" in given else None]:
            name = argument.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                why = ABSENT.get(name.removeprefix("--").replace("-", "_"))
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"unknown option {name}" + (f": {why}" if why else hint))


def add_server_options(parser: Any) -> None:
    """The options of commands that are clients of a server. `parser` may be a group of options."""
    parser.add_argument(
        "--base-url",
        type=base_url,
        default=LOCAL_SERVER,
        metavar="URL",
        help="the server's URL, with or without /v1 (default: %(default)s)",
    )
    add_api_key(parser)


def add_api_key(parser: Any) -> None:
    """`parser` may be a group of options."""
    parser.add_argument(
        "--api-key",
        default=os.environ.get(API_KEY_VARIABLE),
        metavar="KEY",
        help=f"the server's API key; default: the environment variable {API_KEY_VARIABLE}",
    )


def base_url(text: str) -> str:
    """The URL without /v1; raises ArgumentTypeError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a server's address, as in {LOCAL_SERVER}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")
