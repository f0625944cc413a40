"""What a configuration needs, and what of it this machine has."""

from pathlib import Path

import pytest

from cluster.cli import main
from cluster.memory import available_memory
from tests.cluster.commands.failing import fails
from tests.engine.support.workloads import DEMO


def test_plan_prints_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DEMO), "-tp", "2", "-pp", "2"]) == 0
    assert "ranks                 4 (TP=2 × PP=2)" in capsys.readouterr().out


def test_plan_tells_the_memory_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DEMO), "-tp", "2", "--kv-cache-memory-bytes", "8MiB", "--device", "cpu"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory here")]
    assert "MiB for 2 rank(s), " in line and line.endswith(" available")


def test_models_of_a_file_share_this_machines_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    each = f"{{engine: {{model: {DEMO}, served_model_name: %s, kv_cache_memory_bytes: %s, device: cpu}}}}"
    file.write_text(f"models: [{each % ('one', '8MiB')}, {each % ('two', '8MiB')}]")
    assert main(["plan", "--config", str(file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in ("one", "two")] == ["one", "two"]
    assert sum(line.startswith("memory here") for line in printed) == 2
    most = int(available_memory() * 0.8)  # fits once
    file.write_text(f"models: [{each % ('one', most)}, {each % ('two', most)}]")
    assert main(["plan", "--config", str(file)]) == 2
    told = capsys.readouterr()
    assert "two" in told.out.splitlines() and told.err.startswith("squadron plan: model two: 1 rank(s) need")


@pytest.mark.parametrize("command", ["plan", "serve"])
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("max_model_len: 2048, num_gpu_blocks_override: 9", "max_model_len=2048 needs "),
        ("tensor_parallel_size: 7", ""),
    ],
)
def test_an_error_about_one_of_several_models_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, own: str, words: str
) -> None:
    file = tmp_path / "models.yaml"
    each = f"{{engine: {{model: {DEMO}, served_model_name: %s, device: cpu, %s}}}}"
    file.write_text(f"models: [{each % ('one', '')}, {each % ('two', own)}]")
    assert fails(capsys, command, "--config", str(file)).startswith(f"squadron {command}: model two: {words}")
    file.write_text(f"models: [{each % ('two', own)}]")
    assert "model two" not in fails(capsys, command, "--config", str(file))


def test_an_error_about_the_prompts_engines_of_one_of_several_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "models.yaml"
    each = f"{{engine: {{model: {DEMO}, served_model_name: %s, device: cpu}}%s}}"
    file.write_text(f"models: [{each % ('one', '')}, {each % ('two', ', prefill_min_tokens: 9')}]")
    assert fails(capsys, "plan", "--config", str(file)).startswith("squadron plan: model two: prefill_min_tokens=9 is")


@pytest.mark.parametrize("command", ["plan", "doctor"])
@pytest.mark.parametrize(
    ("names", "aliases", "words"),
    [
        (("a", "a"), "{}", "models: two have the name 'a'"),
        (("a", "b"), "{x: y, y: x}", "aliases: 'x' stands for 'y', and there are 'a', 'b'"),
        (("a", "b"), "{x: {a: .nan}}", "aliases: 'x' has nan as the weight of 'a'"),
        (("a", "b"), "{x: {a: most}}", "aliases.x.weights.a='most': Input should be a valid number"),
        (("", "b"), "{}", "models: '' is no name"),
    ],
)
def test_names_that_serve_would_refuse(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, names: tuple[str, ...], aliases: str, words: str
) -> None:
    file = tmp_path / "models.yaml"
    each = [f"{{engine: {{model: {DEMO}, served_model_name: '{name}', device: cpu}}}}" for name in names]
    file.write_text(f"models: [{', '.join(each)}]\naliases: {aliases}\n")
    assert main([command, "--config", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"squadron {command}: {words}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "-tp 2 -pp 2 --kv-cache-memory-bytes 900GB --device cpu",
            "4 rank(s) need 1.689 MiB of weights and 838.2 GiB of",
        ),
        (
            "--num-gpu-blocks-override 900000000 --device cpu",
            "1 rank(s) need 6.379 MiB of weights and 2.747e+04 GiB of",
        ),
        ("--device cuda -tp 4 -pp 4", "device=cuda needs 16 GPU(s), and this machine has "),
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
