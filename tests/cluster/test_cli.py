"""The command line: every option reaches the configuration, and every mistake is one line and
status 2.
"""

import argparse
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli import _parser, main
from cluster.commands.options import DESCRIPTIONS, add_engine_options, engine_arguments
from cluster.commands.serve import application
from cluster.commands.server_options import configure
from cluster.launch.app import AppConfig
from cluster.version import VERSION
from engine.config import EngineConfig
from engine.manifest import MANIFEST_FILE
from tests.corruptions import copy_demo

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"


def parsed(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return engine_arguments(parser.parse_args(arguments))


@contextlib.contextmanager
def free_listener() -> Iterator[int]:
    """A port that somebody listens on within the context, and nobody after it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_every_field_has_a_description() -> None:
    assert set(DESCRIPTIONS) == set(EngineConfig.model_fields) - {"model"}


def test_options_that_are_not_given_are_absent() -> None:
    assert parsed() == {}


def test_every_kind_of_option() -> None:
    arguments = ("-tp", "2", "--pipeline-parallel-size", "4", "--watermark", "0.5", "--dtype", "float32")
    assert parsed(*arguments, "--no-enable-prefix-caching", "--block-size", "16", "--tokenizer", "x") == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 4,
        "watermark": 0.5,
        "dtype": "float32",
        "enable_prefix_caching": False,
        "block_size": 16,
        "tokenizer": "x",
    }


def test_plan_prints_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DEMO), "-tp", "2", "-pp", "2"]) == 0
    assert "ranks                 4 (TP=2 × PP=2)" in capsys.readouterr().out


def test_plan_tells_the_memory_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DEMO), "-tp", "2", "--kv-cache-memory-bytes", "8MiB", "--device", "cpu"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory here")]
    assert "MiB for 2 rank(s), " in line and line.endswith(" available")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "-tp 2 -pp 2 --kv-cache-memory-bytes 900GB --device cpu",
            "4 rank(s) take 1.689 MiB of weights and 838.2 GiB of",
        ),
        (
            "--num-gpu-blocks-override 900000000 --device cpu",
            "1 rank(s) take 6.379 MiB of weights and 2.747e+04 GiB of",
        ),
        ("--device cuda -tp 4 -pp 4", "device=cuda takes 16 GPU(s), and this machine has "),
    ],
)
def test_more_than_this_machine_has(capsys: pytest.CaptureFixture[str], options: str, sentence: str) -> None:
    """Refused before Ray starts, and `plan` says it too, below what it has found out."""
    for command in (["serve"], ["generate", "--prompt", "hello"]):
        assert fails(capsys, *command, str(DEMO), *options.split()).startswith(f"squadron {command[0]}: {sentence}")
    assert main(["plan", str(DEMO), *options.split()]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("ranks ")
    assert said.err.startswith(f"squadron plan: {sentence}")


def test_what_another_cluster_has_is_not_for_this_machine_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("ray_address: 192.0.2.1:6379\ndevice: cuda\nkv_cache_memory_bytes: 900GB\n")
    assert main(["plan", str(DEMO), "--config", str(file)]) == 0
    assert "memory here" not in capsys.readouterr().out


@pytest.mark.parametrize(("given", "seconds"), [([], 300.0), (["--patience", "4.5"], 4.5)])
def test_patience_reaches_the_application(given: list[str], seconds: float) -> None:
    config, server = configure(_parser().parse_args(["serve", str(DEMO), *given]))
    assert AppConfig(**application(config, server, ())).patience == seconds


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
        ("[1, 2]", "{file} holds list, not names of options with values"),
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


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["plan"], ["serve"], ["generate", "--prompt", "hello"]):
        line = fails(capsys, *command, "/nowhere")
        assert line == (
            f"squadron {command[0]}: /nowhere/config.json does not exist; a model is a folder in Hugging Face layout"
        )


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("m.gguf", b"GGUF\3\0\0\0", "{file} is a GGUF file, which is not served; get the checkpoint it was made of"),
        ("model.safetensors", b"", "{file} is a file of a model; name its folder, {file.parent}"),
        ("notes.txt", b"hello", "{file} is a file; a model is a folder in Hugging Face layout, with config.json"),
    ],
)
def test_a_model_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, line: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    for command in (["plan"], ["serve"], ["checkpoint", "verify"], ["checkpoint", "manifest"], ["bench", "latency"]):
        said = fails(capsys, *command, str(file))
        assert said.startswith(f"squadron {command[0]}: " + line.format(file=file))


def test_a_model_of_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "serve"):
        line = fails(capsys, command, "Qwen/Qwen2.5-0.5B-Instruct")
        assert "`hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir Qwen2.5-0.5B-Instruct`" in line


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").mkdir()
    assert fails(capsys, "plan", str(tmp_path)).endswith(f"{tmp_path}/config.json cannot be read: Is a directory")


def test_a_manifest_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_demo(tmp_path / "model")
    (tmp_path / "model" / MANIFEST_FILE).mkdir()
    line = fails(capsys, "plan", str(tmp_path / "model"))
    assert line == f"squadron plan: {tmp_path}/model/{MANIFEST_FILE}: Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write wherever it likes")
def test_a_manifest_in_a_folder_that_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_demo(tmp_path / "model")
    folder.chmod(0o555)
    line = fails(capsys, "checkpoint", "manifest", str(folder))
    assert line.endswith(f"{folder}/{MANIFEST_FILE} cannot be written: you may not write to the folder")


def test_a_ray_address_where_nobody_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Known before Ray is asked, which would try for minutes."""
    with free_listener() as port:
        pass
    address = f"127.0.0.1:{port}"
    assert main(["serve", str(DEMO), "--port", "0", "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: nothing answers at --ray-address {address}; is the port that of `ray start`, and the "
        "cluster up?\n"
    )


def test_a_ray_address_where_something_else_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes connections, and says nothing."""
    monkeypatch.setattr("cluster.launch.ray_cluster.GRPC_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["serve", str(DEMO), "--port", "0", "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: what listens at --ray-address {address} did not answer as Ray does within 1 s; "
        "is the port that of `ray start`?\n"
    )


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["serve", str(DEMO)], ["demo"]):
            line = fails(capsys, *command, "--port", port)
            assert line == (
                f"squadron {command[0]}: cannot listen on 127.0.0.1:{port}: Address already in use; choose "
                "another with --port"
            )


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


def test_options_after_two_dashes_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no/config.json does not exist" in fails(capsys, "plan", "--", "--no")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"squadron {VERSION}\n")


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


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name in DESCRIPTIONS:
        assert "--" + name.replace("_", "-") in text
