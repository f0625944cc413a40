"""The line on what the engine has done since the last one."""

import logging
from dataclasses import replace

import pytest

from engine.records import stats_log
from engine.records.stats import EngineStats
from engine.records.stats_log import StatsLog, stats_line
from tests.engine.support.workloads import Knobs, make_engine


def moments() -> tuple[EngineStats, EngineStats]:
    """Two, of which the second has computed something."""
    before = make_engine(Knobs(num_blocks=41)).stats()
    now = replace(
        before,
        num_steps=3,
        num_prompt_tokens=500,
        num_generation_tokens=50,
        num_prefix_queries=400,
        num_prefix_hits=100,
        num_free_gpu_blocks=30,
        num_requests_running=2,
        num_preemptions_swap=1,
        num_preemptions_recompute=2,
    )
    return before, now


def test_rates_are_of_the_time_between() -> None:
    line = stats_line(*moments(), seconds=10.0)
    assert line == (
        "prompt 50.0 tok/s, generation 5.0 tok/s, running 2, waiting 0, swapped 0, "
        "KV cache 25.0%, prefix hits 25.0%, preemptions 3, recoveries 0"
    )


def test_a_time_in_which_nothing_was_done_is_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, stats_log.logger.name)
    before, now = moments()
    log = StatsLog(before)
    log.update(now)
    assert caplog.messages == [], "it is too early"
    monkeypatch.setattr(stats_log, "INTERVAL_SECONDS", 0.0)
    log.update(before)
    assert caplog.messages == []
    log.update(now)
    log.update(now)
    (line,) = caplog.messages
    assert line.startswith("prompt")
