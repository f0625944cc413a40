"""A checkpoint's manifest is read or refused, and its tensors are shared among those who verify."""

from pathlib import Path

import pytest

from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.errors import InvalidConfig

MANIFEST = Manifest(files={"config.json": "0a"}, headers={}, tensors={f"layer {n}": f"{n:02x}" for n in range(10)})


def test_a_folder_may_have_none(tmp_path: Path) -> None:
    assert Manifest.load(str(tmp_path)) is None
    (tmp_path / MANIFEST_FILE).write_text(MANIFEST.model_dump_json())
    assert Manifest.load(str(tmp_path)) == MANIFEST


@pytest.mark.parametrize(
    ("text", "where"),
    [("", "the file"), ("[]", "the file"), ('{"files": {}, "headers": {}}', "tensors"), ('{"files": 1}', "files")],
)
def test_what_is_no_manifest_is_refused_with_the_place(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(InvalidConfig, match=f"{MANIFEST_FILE} is no manifest: {where}: "):
        Manifest.load(str(tmp_path))


@pytest.mark.parametrize("num_parts", [1, 3, 16])
def test_every_tensor_is_verified_by_one_rank(num_parts: int) -> None:
    shares = [MANIFEST.share(part, num_parts) for part in range(num_parts)]
    assert sum(len(share) for share in shares) == 10
    assert {name: digest for share in shares for name, digest in share.items()} == MANIFEST.tensors
