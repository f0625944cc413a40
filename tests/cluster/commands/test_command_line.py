"""A mistake on the command line is one line, which names the option that was probably meant."""

from pathlib import Path

import pytest

from cluster.cli import main
from tests.cluster.commands.failing import fails

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "serve --tensor-paralel-size 2 {demo}",
            "serve: unknown option --tensor-paralel-size; did you mean --tensor-parallel-size?",
        ),
        ("bench serve --base-ulr=http://x", "bench serve: unknown option --base-ulr; did you mean --base-url?"),
        ("generate {demo} --prompts hello", "generate: unknown option --prompts; did you mean --prompt?"),
        ("plan {demo} --wholly-different", "plan: unknown option --wholly-different"),
        (
            "serve {demo} --trust-remote-code",
            "serve: unknown option --trust-remote-code: code that a ",
        ),
        (
            "plan {demo} --rope-theta 1e6",
            "plan: unknown option --rope-theta: write it into config.json",
        ),
        ("plan {demo} again", "plan: unexpected argument 'again'"),
        ("serve --port http {demo}", "serve: argument --port: invalid int value: 'http'"),
        ("plan {demo} --max-model-len 4kk", "plan: argument --max-model-len: '4kk' is not a size, as in 4096, "),
        (
            "trace --base-url localhost",
            "trace: argument --base-url: 'localhost' is not a server's address, as in http:",
        ),
        ("serv", "squadron: argument COMMAND: invalid choice: 'serv' (choose from 'serve', "),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.format(demo=DEMO).split())
    assert stopped.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.removeprefix("squadron ").startswith(line)
    assert said.endswith(" --help)")


@pytest.mark.parametrize("command", ["chaos", "bench serve"])
def test_a_password_of_a_server_is_in_no_message(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = fails(capsys, *command.split(), "--base-url", "http://me:secret@127.0.0.1:1")
    assert "http://me:…@127.0.0.1:1/v1/models" in said and "secret" not in said


def test_options_after_two_dashes_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no/config.json does not exist" in fails(capsys, "plan", "--", "--no")
