"""A model's JSON files: what is wrong with one is told in a line that names it."""

from pathlib import Path

import pytest

from engine.checkpoint.json_file import read_json
from engine.errors import InvalidConfig


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', "is not JSON: Expecting value"),
        (b"\xff{}", "is not JSON: 'utf-8' codec"),
        (b"[1]", "holds list, not an object"),
        (b"[" * 200_000, "is not JSON: .*recursion"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig, match=rf"config\.json {message}"):
        read_json(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"config\.json does not exist"):
        read_json(tmp_path / "config.json")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        read_json(tmp_path)


def test_what_is_held_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    path.write_text('[{"a": "ä"}]', encoding="utf-8")
    assert read_json(path, list) == [{"a": "ä"}]
