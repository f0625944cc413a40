"""Lines of a batch, answered through a door that refuses for now."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.batch import answering
from cluster.batch.answering import ANSWERS, Answerer, ServerLost
from cluster.batch.doors import KeyRefused, Unreachable
from cluster.batch.files.index import read_index
from cluster.batch.files.lines import Reply
from cluster.batch.files.place import Place


@dataclass
class Door:
    """Answers each body with what `says` has for it, the last one again and again."""

    says: dict[str, list[Reply | Unreachable | KeyRefused]]
    asked: list[str] = field(default_factory=list)

    def open(self) -> "Door":
        return self

    async def post(self, url: str, body: bytes) -> Reply:
        name = json.loads(body)["prompt"]
        self.asked.append(name)
        replies = self.says[name]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MIN_PAUSE", 0.0)
    monkeypatch.setattr(answering, "MAX_PAUSE", 0.0)


def line(name: str, url: str = "/v1/completions") -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"prompt": name}})


def answered(tmp_path: Path, door: Door, lines: list[str], patience: float = 60.0) -> list[dict[str, Any]]:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines))
    place = Place.at(str(source))
    rows = [chunk.row() for chunk in read_index(place, 100).chunks]
    batch = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    made = asyncio.run(Answerer(place, door, 8, patience, "/v1/completions")(batch))
    return [json.loads(each) for chunk in made[ANSWERS] for each in chunk.splitlines()]


def test_what_is_refused_for_now_is_sent_again_and_errors_are_of_one_line_alone(tmp_path: Path) -> None:
    good, bad = Reply(200, b'{"a":1}', "r"), Reply(400, b'{"error":{}}', "r")
    door = Door(
        {"a": [Reply(429, b""), Unreachable("gone"), Reply(503, b"", retry_after=5.0), good], "b": [bad], "c": [good]}
    )
    found = answered(tmp_path, door, [line("a"), "", "no JSON", line("b"), line("c"), line("d", "/v1/embeddings")])
    assert [each["custom_id"] for each in found] == ["a", None, "b", "c", "d"]
    assert [each["response"] and each["response"]["status_code"] for each in found] == [200, None, 400, 200, None]
    assert [each["error"] and each["error"]["code"] for each in found] == [
        None,
        "invalid_line",
        None,
        None,
        "invalid_url",
    ]
    assert sorted(door.asked) == ["a", "a", "a", "a", "b", "c"]


def test_a_proxy_whose_server_was_lost_is_asked_again(tmp_path: Path) -> None:
    door = Door({"a": [Reply(502, b"<html>Bad Gateway</html>"), Reply(200, b'{"a":1}', "r")]})
    (found,) = answered(tmp_path, door, [line("a")])
    assert found["error"] is None and found["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("says", "told"), [(Unreachable("no route"), "no route"), (Reply(503, b"full"), "status 503: b'full'")]
)
def test_a_server_that_answers_nothing_for_long_is_lost(tmp_path: Path, says: Reply | Unreachable, told: str) -> None:
    with pytest.raises(ServerLost, match=f"nothing was answered for 0.01 s; last: {told}"):
        answered(tmp_path, Door({"a": [says]}), [line("a")], patience=0.01)


def test_a_key_that_is_not_taken_answers_no_line(tmp_path: Path) -> None:
    door = Door({"a": [Reply(200, b'{"a":1}')], "b": [KeyRefused("the key")]})
    with pytest.raises(ServerLost, match="the key"):
        answered(tmp_path, door, [line("a"), line("b")])
