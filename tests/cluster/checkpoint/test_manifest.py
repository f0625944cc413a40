"""Damage that the manifest shows, in weights and in the files beside them."""

import json
import os
import resource
from pathlib import Path

import pytest
import ray

from cluster.checkpoint.plan import make_plan
from cluster.cli import main
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.errors import InvalidConfig
from engine.worker.worker import Worker
from tests.cluster.checkpoint.damaged import config_of, refusal
from tests.corruptions import IN_WEIGHTS, NORM, TENSOR, WEIGHTS, edit, shard
from tests.end_to_end.conftest import free_port


@pytest.mark.parametrize("name", IN_WEIGHTS)
def test_damage_in_the_weights_is_found_by_the_manifest(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    Worker(config_of(checkpoint))
    IN_WEIGHTS[name](checkpoint)
    serve = ["serve", "--port", str(free_port())]
    for command in (["checkpoint", "verify"], ["generate", "--prompt", "once"], serve):
        line = refusal(capsys, *command, str(checkpoint))
        assert line.startswith(f"squadron {command[0]}: {checkpoint / WEIGHTS}: tensor {TENSOR} ")
    assert not ray.is_initialized()


def test_a_disk_that_is_full_leaves_the_manifest_as_it_was(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    names, manifest = sorted(os.listdir(checkpoint)), (checkpoint / MANIFEST_FILE).read_bytes()
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        assert main(["checkpoint", "manifest", str(checkpoint)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert "File too large" in capsys.readouterr().err
    assert (checkpoint / MANIFEST_FILE).read_bytes() == manifest and sorted(os.listdir(checkpoint)) == names


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
    with pytest.raises(InvalidConfig, match=r"chat_template\.jinja does not exist, but is listed in squadron"):
        make_plan(config_of(checkpoint))
    template.write_text(text)
    make_plan(config_of(checkpoint))
    edit(checkpoint, NORM, dict)
    with pytest.raises(InvalidConfig, match=r"its header has changed since squadron-sha256\.json was made"):
        make_plan(config_of(checkpoint))


def test_older_files_of_tokens_are_held_to_manifests_that_list_any(checkpoint: Path) -> None:
    """A manifest that lists none may have been made when they were not read."""
    tokens = checkpoint / "added_tokens.json"
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    tokens.write_text('{"<|mark|>": 768}')
    make_plan(config_of(checkpoint))
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    make_plan(config_of(checkpoint))
    (checkpoint / "special_tokens_map.json").write_text('{"bos_token": "<|mark|>"}')
    with pytest.raises(InvalidConfig, match=r"special_tokens_map\.json is not listed in squadron-sha256\.json"):
        make_plan(config_of(checkpoint))
    (checkpoint / "special_tokens_map.json").unlink()
    tokens.write_text('{"<|image|>": 768}')
    with pytest.raises(InvalidConfig, match=r"added_tokens\.json has changed since squadron-sha256\.json was made"):
        make_plan(config_of(checkpoint))


def test_a_manifest_of_several_files(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(checkpoint)
    assert main(["checkpoint", "manifest", str(checkpoint)]) == 0
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    del manifest["tensors"][NORM]
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest))
    assert refusal(capsys, "plan", str(checkpoint)).endswith(f"and the weight files has tensor {NORM}")


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
    assert "has no squadron-sha256.json to compare it with; its headers are valid" in line
