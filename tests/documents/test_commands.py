"""Commands of the documents that need no server: those that print are run as they stand, those that
serve are taken up to the point where Ray would be started.
"""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import _parser, main
from cluster.commands.server.configure import application, configure
from cluster.commands.server.preflight import prepare
from cluster.doctor.finding import Finding
from cluster.launch.config.app_config import AppConfig
from tests.adapters import demo_shapes, save_adapter
from tests.cluster.certificates import make_authority
from tests.documents.snippets import ROOT, Snippet, all_snippets, snippet
from tests.end_to_end.conftest import free_port

DEMO = ROOT / "configs" / "demo"
# Names of models, in whose place the demo's is served: what is on a hub needs the network.
ANOTHER_MODEL = re.compile(r"MODEL|\./[\w.-]+|Qwen/[\w.-]+")


@pytest.mark.parametrize(
    "shown",
    [
        snippet("docs/serving.md", "squadron plan configs/demo"),
        snippet("docs/serving.md", "squadron serve configs/demo -tp 3"),
        snippet("docs/one-node.md", "squadron plan configs/demo"),
        snippet("docs/python.md", "squadron generate configs/demo"),
    ],
    ids=str,
)
def test_what_is_printed_is_what_is_shown(
    shown: Snippet, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    main(shlex.split(shown.text, comments=True)[1:])
    printed = "\n".join(capfd.readouterr())
    assert of_any_machine(printed) == of_any_machine(shown.output)


def of_any_machine(printed: str) -> str:
    """Without the memory that is there, and that a default cache takes of it; nor what is logged,
    which is shown once another test of the process has configured Serve's logs.
    """
    return re.sub(r"memory here .*|^INFO \d{4}-.*", "", printed, flags=re.MULTILINE).strip()


@pytest.mark.parametrize(
    "shown",
    [
        snippet("README.md", "squadron serve Qwen/"),
        snippet("docs/serving.md", "squadron serve configs/demo --tensor-parallel-size 2"),
        snippet("docs/one-node.md", "squadron serve configs/demo"),
        snippet("docs/adapters.md", "squadron serve ./qwen2.5-7b"),
        snippet("docs/cache-tiers.md", "--kv-offloading-path /var/cache"),
        snippet("docs/cache-tiers.md", "--kv-offloading-path s3:"),
        snippet("docs/cache-tiers.md", "--kv-events-config"),
        snippet("docs/prefill.md", "--num-prefill-engines"),
        snippet("docs/security.md", "--ssl-certfile"),
    ],
    ids=str,
)
def test_what_is_served_could_start(
    shown: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("sk-a\n", encoding="utf-8")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for seed, name in enumerate(("sql", "tone")):
        save_adapter(tmp_path / "adapters" / name, demo_shapes(), seed=seed)
    make_authority().issue(tmp_path, "cert")
    _, command, model, *arguments = shlex.split(shown.text, comments=True)
    assert (command, model == "configs/demo" or ANOTHER_MODEL.fullmatch(model) is not None) == ("serve", True)
    given = [command, str(DEMO), *arguments, "--port", str(free_port()), "--device", "cpu"]
    models, server = configure(_parser().parse_args(given))
    start = prepare(models, server)
    AppConfig(**application(server, start.models, start.api_keys)).check()
    assert (start.certificate is not None) == ("--ssl-certfile" in arguments)


def test_the_service_of_systemd_could_start(tmp_path: Path) -> None:
    """Its command, with the file that the page shows, whose folder is another."""
    unit = configparser.ConfigParser(strict=False)
    unit.read_string(snippet("docs/one-node.md", "[Unit]").text)
    _, command, _, *arguments = shlex.split(unit["Service"]["ExecStart"])
    (tmp_path / "keys.yaml").write_text("keys: [{name: chat, key: sk-a}]\n", encoding="utf-8")
    make_authority().issue(tmp_path, "cert")
    text = snippet("docs/one-node.md", "host: 0.0.0.0").text.replace("/etc/squadron", str(tmp_path))
    (tmp_path / "serve.yaml").write_text(text, encoding="utf-8")
    given = [each.replace("/etc/squadron", str(tmp_path)) for each in arguments]
    options = _parser().parse_args([command, str(DEMO), *given, "--port", str(free_port()), "--device", "cpu"])
    start = prepare(*configure(options))
    assert (start.certificate is not None, start.models[0].num_ranks) == (True, 2)


SHELL = [each for each in all_snippets() if each.language in ("bash", "console")]


@pytest.mark.parametrize("shown", [each for each in SHELL if "squadron " in each.text], ids=str)
def test_every_command_is_understood(shown: Snippet) -> None:
    """Also those that are not run."""
    words = shlex.split(shown.text.replace("\\\n", ""), comments=True)
    inner = [shlex.split(word) for word in words if word.startswith("squadron ")]
    for command in [words, *inner]:
        if names := [word for word in command if Path(word).name == "squadron"]:
            begin = command.index(names[0]) + 1
            if begin < len(command):
                _parser().parse_args(command[begin:])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (snippet("README.md", "make demo"), "squadron demo"),
        (snippet("README.md", "make test"), "pytest"),
        (snippet("docs/serving.md", "make demo"), "squadron demo"),
    ],
    ids=str,
)
def test_targets_of_make(shown: Snippet, printed: str) -> None:
    """What they would do; `squadron demo` itself is in tests/end_to_end/test_command.py."""
    make, *targets = shlex.split(shown.text, comments=True)
    done = subprocess.run([make, "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_what_a_node_is_told() -> None:
    address = snippet("docs/cluster.md", "export NODE_IP").text.replace("10.0.0.5", "127.0.0.1")
    told = snippet("docs/cluster.md", "cluster.ingress.node").text.replace("python", sys.executable)
    script = f"{address}\n{told}\nenv"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "RAY_SERVE_ENABLE_HA_PROXY=" in done.stdout, done.stderr


def test_findings_have_the_form_that_is_shown() -> None:
    """`squadron doctor` is run by tests/cluster/commands/operating/test_doctor.py; the page shows
    what it would print of a cluster.
    """
    shown = snippet("docs/deployment.md", "--config configs/serve/two-engines.yaml").output.splitlines()
    assert shown[-1] == "1 failure(s), 0 warning(s)"
    remedy = shown.pop(4).partition("-> ")[2]
    for line in (line for line in shown[:-1] if line != "..."):
        state, check, text = re.fullmatch(r"(ok|warning|failure) +(\w+) +(.*)", line).groups()  # type: ignore[union-attr]
        assert str(Finding(check, state, text, remedy if state == "failure" else "")).splitlines()[0] == line  # type: ignore[arg-type]
