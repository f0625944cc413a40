"""A damaged checkpoint does not start: by its headers before anything does, by its weights when a
worker loads them.
"""

import json
from pathlib import Path

import pytest
import ray
import torch
from safetensors.torch import load_file, save_file

from cluster.checkpoint import values as weight_values
from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.values import check_values
from cluster.cli import main
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.manifest import MANIFEST_FILE, Manifest
from engine.worker.worker import Worker
from tests.corruptions import IN_HEADERS, IN_WEIGHTS, NORM, TENSOR, WEIGHTS, copy_demo, edit, shard


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return copy_demo(tmp_path / "model")


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig.create(model=str(folder), device="cpu", kv_cache_memory_bytes=8 << 20)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize("name", IN_HEADERS)
def test_damage_that_headers_show_is_refused_before_anything_starts(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    corrupt, named = IN_HEADERS[name]
    corrupt(checkpoint)
    for command in (["plan"], ["serve"], ["checkpoint", "verify"], ["checkpoint", "manifest"]):
        line = refusal(capsys, *command, str(checkpoint))
        assert line.startswith(f"squadron {command[0]}: {checkpoint}")
        assert named in line
    with pytest.raises(InvalidConfig) as refused:
        Worker(config_of(checkpoint))
    assert str(checkpoint) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_worker_names_the_tensor_too(checkpoint: Path) -> None:
    for name in ("wrong shape", "wrong dtype", "integer dtype", "missing tensor", "extra tensor"):
        corrupt, named = IN_HEADERS[name]
        corrupt(copy_demo(checkpoint))
        with pytest.raises(InvalidConfig, match=named):
            Worker(config_of(checkpoint))


@pytest.mark.parametrize("name", IN_WEIGHTS)
def test_damage_in_the_weights_is_found_by_the_manifest(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    Worker(config_of(checkpoint))
    IN_WEIGHTS[name](checkpoint)
    for command in (["checkpoint", "verify"], ["generate", "--prompt", "once"], ["serve"]):
        line = refusal(capsys, *command, str(checkpoint))
        assert line.startswith(f"squadron {command[0]}: {checkpoint / WEIGHTS}: tensor {TENSOR} ")
    assert not ray.is_initialized()


def test_numbers_that_are_not_finite_are_found_without_a_manifest(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    IN_WEIGHTS["NaN block"](checkpoint)
    line = refusal(capsys, "generate", "--prompt", "once", str(checkpoint))
    assert line.endswith(f"{checkpoint / WEIGHTS}: tensor {TENSOR} holds NaN or infinity, as torch.bfloat16")
    line = refusal(capsys, "serve", str(checkpoint))
    assert line.endswith(f"{checkpoint / WEIGHTS}: tensor {TENSOR} holds NaN or infinity, as BF16")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_every_kind_of_number_is_looked_at_to_the_last(checkpoint: Path, dtype: str, value: float) -> None:
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(checkpoint / WEIGHTS).items()}
    largest = torch.finfo(getattr(torch, dtype)).max
    tensors[TENSOR][-1, -2:] = torch.tensor([largest, -largest])
    save_file(tensors, checkpoint / WEIGHTS)
    assert check_values(config_of(checkpoint))
    tensors[TENSOR][-1, -1] = value
    save_file(tensors, checkpoint / WEIGHTS)
    with pytest.raises(InvalidConfig, match=f"{TENSOR} holds NaN or infinity"):
        check_values(config_of(checkpoint))


def test_large_weights_are_left_to_the_workers(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    IN_WEIGHTS["NaN block"](checkpoint)
    monkeypatch.setattr(weight_values, "MAX_BYTES", (checkpoint / WEIGHTS).stat().st_size // 2)
    assert not check_values(config_of(checkpoint))


def test_the_ranks_of_a_stage_verify_a_share_each(checkpoint: Path) -> None:
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    manifest = Manifest.load(str(checkpoint))
    assert manifest is not None
    shares = [manifest.share(rank, 2) for rank in range(2)]
    assert min(len(share) for share in shares) > 20
    assert shares[0] | shares[1] == manifest.tensors
    assert not shares[0].keys() & shares[1].keys()


def test_files_beside_the_weights_are_held_to_the_manifest(checkpoint: Path) -> None:
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    make_plan(config_of(checkpoint))
    template = checkpoint / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text + " ")
    with pytest.raises(InvalidConfig, match=r"chat_template\.jinja has changed since squadron-sha256\.json was made"):
        make_plan(config_of(checkpoint))
    template.unlink()
    with pytest.raises(InvalidConfig, match=r"chat_template\.jinja does not exist, and squadron-sha256\.json says"):
        make_plan(config_of(checkpoint))
    template.write_text(text)
    make_plan(config_of(checkpoint))
    edit(checkpoint, NORM, dict)
    with pytest.raises(InvalidConfig, match=r"its header is not the one that squadron-sha256\.json was made of"):
        make_plan(config_of(checkpoint))


def test_a_manifest_of_several_files(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(checkpoint)
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    del manifest["tensors"][NORM]
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest))
    assert refusal(capsys, "plan", str(checkpoint)).endswith(f"do not both have tensor {NORM}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file: Invalid JSON"),
        ('{"files": {}, "headers": {}}', "tensors: Field required"),
        ('{"files": {}, "headers": {}, "tensors": {"a": 1}}', "tensors.a: Input should be a valid string"),
    ],
)
def test_a_manifest_that_is_none(checkpoint: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str) -> None:
    (checkpoint / MANIFEST_FILE).write_text(text)
    assert f"{checkpoint / MANIFEST_FILE} is no manifest: {reason}" in refusal(capsys, "plan", str(checkpoint))


def test_nothing_to_verify_by(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "checkpoint", "verify", str(checkpoint))
    assert "has no squadron-sha256.json to verify it by; its headers are in order" in line
