"""The options of `squadron serve`, from the command line and from a file."""

from pathlib import Path

import pytest
import yaml

from cluster.cli import _parser, main
from cluster.commands.server.configure import application, configure
from cluster.gateway.options import ModelOptions
from cluster.launch.config.app_config import AppConfig
from cluster.telemetry.tracing import Telemetry
from tests.cluster.commands.failing import fails

DEMO = Path(__file__).resolve().parents[4] / "configs" / "demo"


@pytest.mark.parametrize(("given", "seconds"), [([], 300.0), (["--patience", "4.5"], 4.5)])
def test_patience_reaches_the_application(given: list[str], seconds: float) -> None:
    models, server = configure(_parser().parse_args(["serve", str(DEMO), *given]))
    assert AppConfig(**application(server, models, ())).patience == seconds


@pytest.mark.parametrize(("given", "number"), [([], 2), (["--num-store-shards", "3"], 3)])
def test_the_number_of_shards_reaches_the_application(given: list[str], number: int) -> None:
    models, server = configure(_parser().parse_args(["serve", str(DEMO), "--num-gateways", "16", *given]))
    config = AppConfig(**application(server, models, ()))
    assert config.gateway_options((ModelOptions("demo", "configs/demo"),)).num_store_shards == number


def test_what_to_observe_reaches_the_application() -> None:
    url = "http://127.0.0.1:4318/v1/traces"
    given = ["--otlp-traces-endpoint", url, "--collect-detailed-traces", "all", "--enable-log-requests"]
    models, server = configure(_parser().parse_args(["serve", str(DEMO), *given, "--log-format", "json"]))
    app = AppConfig(**application(server, models, ()))
    assert app.telemetry == Telemetry(url, collect_detailed_traces=True, log_requests=True)
    assert app.log_format == "json"


def test_the_command_line_wins_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: {DEMO}\ntensor-parallel-size: 2\npipeline_parallel_size: 4\n")
    assert main(["plan", "--config", str(file), "-tp", "1"]) == 0
    assert "TP=1 × PP=4" in capsys.readouterr().out


OF_ENGINES = {
    "tokenizer": "tokens",
    "download_dir": "models",
    "kv_offloading_path": "blocks",
    "swap_space": 1,
}


@pytest.mark.parametrize("are_several", [False, True])
def test_no_path_of_an_engine_depends_on_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_several: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").symlink_to(DEMO)
    values = {"model": "demo", **OF_ENGINES}
    Path("file.yaml").write_text(yaml.safe_dump({"models": [{"engine": values}]} if are_several else values))
    models, server = configure(_parser().parse_args(["serve", "--config", "file.yaml", "--ray-address", "auto"]))
    args = application(server, models, ())
    engine = (args["models"][0] if are_several else args)["engine"]
    found = {name: engine[name] for name in ("tokenizer", "download_dir", "kv_offloading_path")}
    assert found == {name: str(tmp_path / str(OF_ENGINES[name])) for name in found}


def test_nor_does_that_of_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DEMO.parent)
    given = ["serve", "demo", "--speculative-config", '{"model": "demo"}', "--download-dir", "~/models"]
    models, server = configure(_parser().parse_args(given))
    engine = application(server, models, ())["engine"]
    assert engine["speculative_config"]["model"] == str(DEMO)
    assert engine["download_dir"] == "~/models", "each node has its own"


TWO = """
models:
  - engine: {{model: {demo}, served_model_name: steady}}
    num_engines: 2
  - engine: {{model: {demo}, served_model_name: canary, num_threads: 3}}
aliases: {{demo: {{steady: 0.8, canary: 0.2}}}}
num_threads: 1
"""


def test_several_models_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(TWO.format(demo=DEMO))
    models, server = configure(_parser().parse_args(["serve", "--config", str(file), "--device", "cpu"]))
    assert [(model.config.model_name, model.num_ranks) for model in models] == [("steady", 2), ("canary", 1)]
    assert [(model.config.device, model.config.num_threads) for model in models] == [("cpu", 1), ("cpu", 3)]
    app = AppConfig(**application(server, models, ()))
    assert [model.num_engines for model in app.all_models()] == [2, 1]
    assert app.aliases == {"demo": {"steady": 0.8, "canary": 0.2}}


@pytest.mark.parametrize(
    ("options", "more", "line"),
    [
        ([str(DEMO)], "", f"model={DEMO} is the only one, and models lists others: leave out one of them"),
        (["--num-engines", "2"], "", "num_engines is of the only model; with models it is a key of each of them"),
        ([], "canari: 1", "unknown key 'canari'"),
        ([], "models: [{num_engines: 2}]", "models[0]: engine is required"),
        ([], "models: [{engine: {modle: x}}]", "models[0]: unknown key 'modle'; did you mean 'model'?"),
        ([], "aliases: {steady: canary}", "aliases: 'steady' is a model's own name"),
        ([], "served_model_name: one\nmodels: [{engine: {model: DEMO}}, {engine: {model: DEMO}}]", "models: two have"),
    ],
)
def test_mistakes_in_a_file_of_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], more: str, line: str
) -> None:
    file = tmp_path / "models.yaml"
    written = yaml.safe_load(TWO.format(demo=DEMO)) | (yaml.safe_load(more.replace("DEMO", str(DEMO))) or {})
    file.write_text(yaml.safe_dump(written))
    assert fails(capsys, "serve", "--config", str(file), *options).startswith(f"squadron serve: {line}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "model: m\ntensor_parallel_sizes: 2",
            "unknown key 'tensor_parallel_sizes'; did you mean 'tensor_parallel_size'?",
        ),
        ("engine: {{model: m}}", "engine is a key of each of models, and of args in a file for serve run; options of"),
        ("[1, 2]", "{file} must map names of options to values; it holds a list"),
        ("a: b: c", "{file} is not YAML: mapping values are not allowed here"),
        ("tensor_parallel_size: 2", "model is required"),
        ("modle: m", "unknown key 'modle'; did you mean 'model'?"),
        ("model: {demo}\nprot: 80", "unknown key 'prot'; did you mean 'port'?"),
        ("model: {demo}\napi_key: 1234", "api_key: Input should be a valid list"),
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
