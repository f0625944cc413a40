"""The collector's pace while an engine runs."""

import gc

from engine.frontend.garbage import YOUNG_OBJECTS, collect_as_before, collect_rarely


def test_the_collector_rests_and_then_goes_on_as_before() -> None:
    thresholds, num_frozen = gc.get_threshold(), gc.get_freeze_count()
    before = collect_rarely()
    try:
        assert before == thresholds
        assert gc.get_threshold() == (YOUNG_OBJECTS, *thresholds[1:])
        assert gc.get_freeze_count() > num_frozen
    finally:
        collect_as_before(before)
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
