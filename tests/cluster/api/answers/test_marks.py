import pytest

from cluster.api.answers.marks import cut, held_back

MARK, OTHER = "<tool_call>", "</think>"


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("hello", 0), ("<", 1), ("so <tool", 5), ("a < b", 0), ("<<", 1), ("</th", 4), ("<tool_call>", 0)],
)
def test_what_may_begin_a_mark_is_held_back(text: str, count: int) -> None:
    assert held_back(text, MARK, OTHER) == count


def test_no_text_holds_more_back_than_a_mark_less_one() -> None:
    for length in range(1, len(MARK)):
        assert cut("x" * 3 + MARK[:length], MARK) == ("xxx", MARK[:length])
    assert cut(MARK[:-1] + "x", MARK) == (MARK[:-1] + "x", "")
    assert cut("aab", "ab") == ("aab", "")
    assert cut("aba", "ab") == ("ab", "a")
