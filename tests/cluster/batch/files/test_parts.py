"""Answers in parts."""

import json
from pathlib import Path

import pytest

from cluster.batch.files.parts import Parts, alone
from cluster.batch.files.place import Place
from engine.errors import InvalidConfig


def line(number: int, status: int = 200) -> bytes:
    response = {"status_code": status, "request_id": "", "body": {}}
    return json.dumps({"id": "", "custom_id": str(number), "response": response, "error": None}).encode()


def test_whoever_comes_next_goes_on_behind_the_last_part(tmp_path: Path) -> None:
    folder = Place.at(str(tmp_path / "parts"))
    first = Parts(folder, "digest")
    first.add([line(0), line(1, 400)])
    first.add([line(2)])
    (tmp_path / "parts" / "0000000003-2.jsonl.writing").write_bytes(b"half")  # as a killed writer leaves it
    (tmp_path / "parts" / "0000000009-1.jsonl").write_bytes(line(9))  # not behind what is there
    second = Parts(folder, "digest")
    assert (second.num_lines, second.counts.completed, second.counts.failed) == (3, 2, 1)
    second.add([line(3)])
    second.join(Place.at(str(tmp_path / "out")))
    assert (tmp_path / "out").read_bytes().splitlines() == [line(0), line(1, 400), line(2), line(3)]
    second.divide(Place.at(str(tmp_path / "good")), Place.at(str(tmp_path / "bad")))
    assert (tmp_path / "good").read_bytes().splitlines() == [line(0), line(2), line(3)]
    assert (tmp_path / "bad").read_bytes().splitlines() == [line(1, 400)]
    second.delete()
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("damaged", [b"", line(1) + b"\n", line(1) + b"\n" + line(2)[:-9], bytes(9), b"\xff"])
def test_what_is_damaged_is_answered_again(tmp_path: Path, damaged: bytes) -> None:
    folder = Place.at(str(tmp_path / "parts"))
    first = Parts(folder, "digest")
    for lines in ([line(0)], [line(1), line(2)], [line(3)]):
        first.add(lines)
    (tmp_path / "parts" / "0000000001-2.jsonl").write_bytes(damaged)
    second = Parts(folder, "digest")
    assert (second.num_lines, second.counts.completed) == (1, 1)
    second.add([line(1), line(2), line(3)])
    Parts(folder, "digest").join(Place.at(str(tmp_path / "out")))
    assert (tmp_path / "out").read_bytes().splitlines() == [line(number) for number in range(4)]


def test_another_input_is_refused(tmp_path: Path) -> None:
    folder = Place.at(str(tmp_path / "parts"))
    Parts(folder, "digest").add([line(0)])
    with pytest.raises(InvalidConfig, match="another input"):
        Parts(folder, "other")
    assert Parts(folder, None).num_lines == 1


def test_one_process_has_a_folder(tmp_path: Path) -> None:
    folder = Place.at(str(tmp_path / "parts"))
    with alone(folder):
        with pytest.raises(InvalidConfig, match="another process"), alone(folder):
            pass
        Parts(folder, "digest").add([line(0)])
    with alone(folder):
        assert Parts(folder, "digest").num_lines == 1


def test_a_folder_without_answers_is_not_left(tmp_path: Path) -> None:
    with alone(Place.at(str(tmp_path / "parts"))):
        pass
    assert list(tmp_path.iterdir()) == []
