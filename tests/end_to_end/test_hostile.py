"""Hostile requests, few of the command's; and that its check of logs sees what it must."""

from pathlib import Path

from tests.end_to_end.hostile import attack, check_logs

NUM = 800


def test_nothing_of_theirs_stays_in_metrics_and_logs(tmp_path: Path) -> None:
    sent, judge, wrong = attack(tmp_path, NUM)
    assert sent.failures == judge.failures == wrong == []
    of_kinds = {"answer": 200, "headers": 200, "key": 401, "model": 404, "path": 404}
    assert {kind: sent.statuses[kind, status] for kind, status in of_kinds.items()} == dict.fromkeys(of_kinds, NUM // 8)


def test_the_check_sees_texts_and_torn_events(tmp_path: Path) -> None:
    (tmp_path / "serve").mkdir()
    (tmp_path / "raylet.out").write_text("anything\nhostile-text-3\n")
    (tmp_path / "serve" / "replica.log").write_text("INFO 2026 well\nand more\n")
    assert check_logs(tmp_path) == [
        "raylet.out has a text or a key: hostile-text-3",
        "replica.log has a line that is no event: and more",
    ]
