"""Samples of weights that nodes have in part are together that of the whole."""

import json
import shutil
from pathlib import Path

import pytest

from cluster.checkpoint.manifest import make_manifest, write_manifest
from engine.checkpoint.headless import INDEX
from engine.checkpoint.sample import sample_of, weights_digest
from engine.errors import InvalidConfig
from tests.cluster.download.parts import ALL, LAST, OF_STAGE, save_in_parts


def copy_of(folder: Path, to: Path, weights: set[str]) -> str:
    shutil.copytree(folder, to, ignore=lambda _, names: [name for name in names if name in ALL - weights])
    return str(to)


def test_the_digest_does_not_depend_on_who_has_which_file(tmp_path: Path) -> None:
    save_in_parts(tmp_path / "whole")
    whole = weights_digest(str(tmp_path / "whole"))
    nodes = [sample_of(copy_of(tmp_path / "whole", tmp_path / f"{stage}", OF_STAGE[stage])) for stage in range(2)]
    assert {nodes[0].and_of(nodes[1:]).digest, nodes[1].and_of(nodes[:1]).digest} == {whole}
    assert whole not in {node.digest for node in nodes}
    assert nodes[0].and_of([]) == nodes[0]
    assert nodes[0].files[LAST] is None


def test_only_files_that_are_read_count(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    save_in_parts(folder)
    before = weights_digest(str(folder))
    (folder / "consolidated.safetensors").write_bytes(b"of another layout")
    assert weights_digest(str(folder)) == before
    data = bytearray((folder / LAST).read_bytes())
    data[-1] ^= 1
    (folder / LAST).write_bytes(data)
    assert weights_digest(str(folder)) != before


@pytest.mark.parametrize("name", ["..", "", "../LAST", "/LAST"])
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "whole"
    save_in_parts(folder)
    shutil.copy(folder / LAST, tmp_path)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name.replace("/LAST", f"/{LAST}")
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(InvalidConfig, match="which is not a file name in this folder"):
        weights_digest(str(folder))


def test_a_manifest_stands_for_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    save_in_parts(folder)
    write_manifest(folder, make_manifest(folder, 1, lambda _: None))
    some = sample_of(copy_of(folder, tmp_path / "some", OF_STAGE[0]))
    assert some == sample_of(str(folder))
    assert some.files == {}


def test_a_folder_without_weights(tmp_path: Path) -> None:
    """As that of a model with random ones."""
    (tmp_path / "config.json").write_text("{}")
    assert sample_of(str(tmp_path)).files == {}
