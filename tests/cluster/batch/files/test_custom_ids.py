"""Two lines with one id are found, however far apart, and nothing else is refused."""

import json
from pathlib import Path

import pytest

from cluster.batch.files.custom_ids import refuse_twins
from cluster.batch.files.index import CHUNK_LINES, read_index
from cluster.batch.files.lines import MAX_LINE_BYTES
from cluster.batch.files.place import Place
from engine.errors import InvalidRequest


def check(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines))
    place = Place.at(str(path))
    refuse_twins(place, read_index(place, 10_000))


def named(custom_id: object) -> str:
    return json.dumps({"custom_id": custom_id})


@pytest.mark.parametrize("second", [1, CHUNK_LINES, 3 * CHUNK_LINES + 1])
def test_twins(tmp_path: Path, second: int) -> None:
    lines = [named(f"line-{number}") for number in range(4 * CHUNK_LINES)]
    check(tmp_path / "input", lines)
    lines[second] = named("line-0")
    lines.insert(1, "")
    with pytest.raises(InvalidRequest, match=f"requests 1 and {second + 1} .*'line-0'") as caught:
        check(tmp_path / "input", lines)
    assert (caught.value.param, caught.value.code) == ("custom_id", "duplicate_custom_id")


def test_lines_without_an_id_are_no_twins(tmp_path: Path) -> None:
    check(tmp_path / "input", [named(None), named(None), named(1), named(1), "{", "{", "x" * (MAX_LINE_BYTES + 1)])
