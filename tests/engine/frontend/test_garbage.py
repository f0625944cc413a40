"""The collector's pace while engines run."""

import gc

import pytest

from engine.frontend import engine_thread
from engine.frontend.garbage import YOUNG_OBJECTS, Collector
from tests.engine.frontend.engines import make


def test_the_collector_rests_and_then_goes_on_as_before() -> None:
    thresholds, num_frozen = gc.get_threshold(), gc.get_freeze_count()
    collector = Collector()
    collector.slow_down()
    try:
        assert gc.get_threshold() == (YOUNG_OBJECTS, *thresholds[1:])
        assert gc.get_freeze_count() > num_frozen
    finally:
        collector.set_back()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("ends_first", [0, 1])
def test_of_two_engines_the_last_to_end_sets_it_back(ends_first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # An engine that another test left to this process counts for its own.
    monkeypatch.setattr(engine_thread, "COLLECTOR", Collector())
    thresholds = gc.get_threshold()
    engines = [make(), make()]
    for engine in engines:
        engine.start()
    try:
        engines[ends_first].shutdown()
        engines[ends_first].shutdown()  # as often as one likes
        assert gc.get_threshold() == (YOUNG_OBJECTS, *thresholds[1:])
        assert gc.get_freeze_count() > 0
    finally:
        engines[1 - ends_first].shutdown()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
