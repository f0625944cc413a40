"""What ranks found becomes what all of them can hold."""

from engine.executor import smallest


def test_every_rank_holds_the_same_blocks() -> None:
    assert smallest([(100, 30), (90, 40), (120, 35)]) == (90, 30)
    assert smallest([(7, 0)]) == (7, 0)
