"""Who answers a batch, by the command line."""

import argparse
from pathlib import Path

import pytest

from cluster.commands.batch_servers import _api_key, add_servers, check_servers
from cluster.commands.options import add_engine_options
from engine.errors import InvalidConfig


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_servers(parser)
    add_engine_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [["--model", "x"], ["--base-url", "http://127.0.0.1:8000"], ["--ray-address", "auto"], ["--config", "x"]],
)
def test_one_is_enough(arguments: list[str]) -> None:
    check_servers(options(*arguments))


@pytest.mark.parametrize("arguments", [[], ["--model", "x", "--ray-address", "auto"]])
def test_none_and_two_are_refused(arguments: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="give one of --model, --base-url and --ray-address"):
        check_servers(options(*arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base-url", "http://127.0.0.1:8000", "-tp", "2"], "tensor_parallel_size=2 is of no use with --base-url"),
        (["--ray-address", "auto", "--config", "x.yaml"], "config=x.yaml is of no use with --ray-address"),
    ],
)
def test_options_of_an_engine_that_has_started_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        check_servers(options(*arguments))


@pytest.mark.parametrize("server", [["--model", "x"], ["--ray-address", "auto"], ["--config", "x"]])
def test_a_key_is_for_http_only(server: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="api_key_file=keys is of use with --base-url only"):
        check_servers(options(*server, "--api-key-file", "keys"))


def test_a_key_file_holds_one_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# ours\n\n  sk-1 \n")
    assert _api_key(options("--api-key-file", str(file))) == "sk-1"
    file.write_bytes(b"\xef\xbb\xbfsk-1\r\n")  # as programs of Windows write it
    assert _api_key(options("--api-key-file", str(file))) == "sk-1"
    file.write_text("sk-1\nsk-2\n")
    with pytest.raises(InvalidConfig, match="holds 2 lines; it must hold one API key"):
        _api_key(options("--api-key-file", str(file)))
