"""The options of `squadron serve`, from the command line and from a file."""

from pathlib import Path

import pytest

from cluster.cli import _parser, main
from cluster.commands.server.server_options import configure
from cluster.launch.config.app_config import AppConfig
from cluster.telemetry.tracing import Telemetry
from tests.cluster.commands.failing import fails

DEMO = Path(__file__).resolve().parents[4] / "configs" / "demo"


@pytest.mark.parametrize(("given", "seconds"), [([], 300.0), (["--patience", "4.5"], 4.5)])
def test_patience_reaches_the_application(given: list[str], seconds: float) -> None:
    config, server = configure(_parser().parse_args(["serve", str(DEMO), *given]))
    assert AppConfig(**server.application(config, ())).patience == seconds


def test_what_to_observe_reaches_the_application() -> None:
    url = "http://127.0.0.1:4318/v1/traces"
    given = ["--otlp-traces-endpoint", url, "--collect-detailed-traces", "all", "--enable-log-requests"]
    config, server = configure(_parser().parse_args(["serve", str(DEMO), *given, "--log-format", "json"]))
    app = AppConfig(**server.application(config, ()))
    assert app.telemetry == Telemetry(url, collect_detailed_traces=True, log_requests=True)
    assert app.log_format == "json"


def test_the_command_line_wins_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: {DEMO}\ntensor-parallel-size: 2\npipeline_parallel_size: 4\n")
    assert main(["plan", "--config", str(file), "-tp", "1"]) == 0
    assert "TP=1 × PP=4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "model: m\ntensor_parallel_sizes: 2",
            "unknown key 'tensor_parallel_sizes'; did you mean 'tensor_parallel_size'?",
        ),
        ("[1, 2]", "{file} must map names of options to values; it holds a list"),
        ("a: b: c", "{file} is not YAML: mapping values are not allowed here"),
        ("tensor_parallel_size: 2", "model is required"),
        ("modle: m", "unknown key 'modle'; did you mean 'model'?"),
        ("model: {demo}\nprot: 80", "unknown key 'prot'; did you mean 'port'?"),
        ("model: {demo}\napi_key: 1234", "api_key: Input should be a valid tuple"),
        ("model: {demo}\napi_key: [a, '']", "the configuration holds an empty API key"),
        ("model: {demo}\npatience: 0", "patience=0: Input should be greater than 0"),
        ("model: {demo}\nport: 70000", "port=70000: Input should be less than or equal to 65535"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(text.format(demo=DEMO))
    assert fails(capsys, "serve", "--config", str(file)).startswith("squadron serve: " + line.format(file=file))


def test_sizes_have_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line and in files, which may be those of `serve`."""
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: {DEMO}\nkv_cache_memory_bytes: 8MiB\nmax_model_len: 1K\nport: 8001\n")
    assert main(["plan", "--config", str(file)]) == 0
    assert "longest sequence      1024 tokens" in capsys.readouterr().out
    assert main(["plan", "--config", str(file), "--kv-cache-memory-bytes", "9MB", "--max-model-len", "1k"]) == 0
    assert "longest sequence      1000 tokens" in capsys.readouterr().out
    file.write_text("max_model_len: many")
    assert fails(capsys, "plan", str(DEMO), "--config", str(file)).startswith(
        "squadron plan: max_model_len='many': 'many' is not a size, as in 4096, "
    )
