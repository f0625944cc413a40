"""Which servers are refused before anything starts."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.cli import main
from tests.cluster.certificates import make_authority
from tests.end_to_end.conftest import DEMO


def test_a_certificate_that_cannot_be_served_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = make_authority().issue(tmp_path, days=(-2, -1))
    options = {
        "expired at": [files.certfile, files.keyfile],
        "cannot be read: Is a directory": [str(tmp_path), files.keyfile],
        "has no private key in PEM": [files.certfile, files.certfile],
    }
    for reason, (certfile, keyfile) in options.items():
        assert main(["serve", str(DEMO), "--ssl-certfile", certfile, "--ssl-keyfile", keyfile]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("squadron serve: ssl_") and reason in line


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--allowed-origins", "ftp://host", "'ftp://host' is neither http(s)://HOST"),
        ("--allowed-hosts", "a/b", "'a/b' is neither a name or address"),
        ("--otlp-traces-endpoint", "nonsense", "is not a URL such as"),
        ("--kv-offloading-path", "s4://bucket/folder", "kv_offloading_path=s4://bucket/folder: "),
        ("--kv-offloading-path", "/proc/folder", "kv_offloading_path=/proc/folder: No such file or directory"),
        ("--kv-events-config", '{"endpoint": "localhost:5557"}', "kv_events_config.endpoint='localhost:5557'"),
        ("--files-path", "s4://bucket/folder", "'s4://bucket/folder' is in no store"),
    ],
)
def test_what_the_application_would_refuse_is_refused_before_ray_starts(
    option: str, value: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.serve.ray_cluster", None)
    assert main(["serve", str(DEMO), option, value]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--num-prefill-engines", "1", "--no-enable-prefix-caching"], "num_prefill_engines needs enable_prefix_cach"),
        (["--prefill-memory", "2"], "prefill_memory=2 is of no use without num_prefill_engines"),
        (["--collect-detailed-traces", "all"], "is of no use without otlp_traces_endpoint"),
        (["--patience", "inf"], "patience=inf"),
        (["-tp", "2", "--distributed-executor-backend", "local"], "local runs one rank"),
        (["--log-dir", "DIR", "--ray-address", "auto"], "the logs of a cluster that ran before stay on its nodes"),
    ],
)
def test_options_that_exclude_each_other_are_refused_before_ray_starts(
    given: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("cluster.commands.serve.ray_cluster", None)
    assert main(["serve", str(DEMO), *(str(tmp_path) if each == "DIR" else each for each in given)]) == 2
    assert reason in capsys.readouterr().err


def test_a_wish_for_haproxy_is_refused_where_it_cannot_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.serve.ray_cluster", None)
    monkeypatch.setattr("cluster.ingress.haproxy.sys", SimpleNamespace(path=[]))
    monkeypatch.setenv("PATH", "")
    assert main(["serve", str(DEMO), "--ingress", "haproxy"]) == 2
    assert "ingress=haproxy cannot be had: " in capsys.readouterr().err


def test_models_whose_names_differ_in_signs_only_are_refused_before_ray_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cluster.commands.serve.ray_cluster", None)
    engines = "".join(f"  - engine: {{model: {DEMO}, served_model_name: {name}}}\n" for name in ("a+b", "a-b"))
    (tmp_path / "models.yaml").write_text(f"models:\n{engines}")
    assert main(["serve", "--config", str(tmp_path / "models.yaml")]) == 2
    assert "differ in signs only" in capsys.readouterr().err
