"""Damage that the headers of weight files show."""

import json
from pathlib import Path

import pytest

from cluster.checkpoint.files import OF_OLDER_TOOLS, read_tensors, weight_files
from cluster.checkpoint.plan import make_plan
from engine.errors import InvalidConfig
from engine.worker.worker import Worker
from parallel.spec.stored import INDEX_FILE
from tests.cluster.checkpoint.damaged import config_of, refusal
from tests.corruptions import IN_HEADERS, copy_demo


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


def test_an_index_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text("[" * 200_000)
    with pytest.raises(InvalidConfig, match="has no weight_map: RecursionError"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["..", ".", "", "sub/a.safetensors", "../a.safetensors", "/a.safetensors", 1, None])
def test_an_index_names_files_of_its_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InvalidConfig, match="for tensor a, which is not a file name in this folder"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "why"), [("sub", "sub cannot be read: Is a directory"), ("x" * 300, "does not exist")]
)
def test_what_an_index_names_and_cannot_be_read_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InvalidConfig, match=why):
        read_tensors(tmp_path)


def test_other_files_than_safetensors_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(InvalidConfig, match=r"nor does .*; pytorch_model.bin is a pickle, which could run code"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", OF_OLDER_TOOLS)
def test_a_file_of_an_older_quantizer_is_named_where_the_tensors_are_others(checkpoint: Path, name: str) -> None:
    """config.json alone says how weights are quantized, as in transformers."""
    (checkpoint / name).write_text('{"bits": 4, "group_size": 128}')
    make_plan(config_of(checkpoint))
    corrupt, _ = IN_HEADERS["extra tensor"]
    corrupt(checkpoint)
    with pytest.raises(InvalidConfig, match=f"the model has no tensor .*; {name} is not read: .* quantization_config"):
        make_plan(config_of(checkpoint))


def test_a_worker_names_the_tensor_too(checkpoint: Path) -> None:
    for name in ("wrong shape", "wrong dtype", "integer dtype", "missing tensor", "extra tensor"):
        corrupt, named = IN_HEADERS[name]
        corrupt(copy_demo(checkpoint))
        with pytest.raises(InvalidConfig, match=named):
            Worker(config_of(checkpoint))
