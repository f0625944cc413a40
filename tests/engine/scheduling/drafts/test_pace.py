"""How long guesses are, and when there are none."""

from engine.scheduling.drafts.pace import Pace


def test_wrong_guesses_become_shorter_and_right_ones_longer():
    pace = Pace(8)
    lengths = []
    for num_right in (8, 3, 0, 2, 3):
        pace.judge(100, pace.length, num_right)
        lengths.append(pace.length)
    assert lengths == [8, 4, 2, 4, 4]


def test_one_that_keeps_failing_pauses_for_longer_and_longer():
    pace = Pace(4)
    num_tokens, pauses = 100, []
    for _ in range(9):
        pace.judge(num_tokens, pace.length, 0)
        pause = next(pause for pause in range(100) if not pace.is_paused(num_tokens + pause))
        pauses.append(pause)
        num_tokens += pause
    assert pauses == [0, 2, 4, 8, 16, 32, 64, 64, 64]
    pace.judge(num_tokens, 1, 1)
    pace.judge(num_tokens, 2, 0)
    assert not pace.is_paused(num_tokens)
