"""A periodic log line on what the engine did since the last one."""

import logging
import time

from engine.records.stats import EngineStats

logger = logging.getLogger("squadron.engine")

INTERVAL_SECONDS = 10.0


class StatsLog:
    def __init__(self, start: EngineStats) -> None:
        self._logged, self._logged_at = start, time.monotonic()

    def update(self, now: EngineStats) -> None:
        """Log every ten seconds, if there were steps."""
        seconds = time.monotonic() - self._logged_at
        if seconds < INTERVAL_SECONDS:
            return
        if now.num_steps > self._logged.num_steps:
            logger.info("%s", stats_line(self._logged, now, seconds))
        self._logged, self._logged_at = now, time.monotonic()


def stats_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    """One line for the log on what happened between two moments."""
    hits = now.num_prefix_hits - before.num_prefix_hits
    queries = max(now.num_prefix_queries - before.num_prefix_queries, 1)
    return (
        f"prompt {(now.num_prompt_tokens - before.num_prompt_tokens) / seconds:.1f} tok/s, "
        f"generation {(now.num_generation_tokens - before.num_generation_tokens) / seconds:.1f} tok/s, "
        f"running {now.num_requests_running}, waiting {now.num_requests_waiting}, swapped {now.num_requests_swapped}, "
        f"KV cache {now.kv_cache_usage:.1%}, prefix hits {hits / queries:.1%}, "
        f"preemptions {now.num_preemptions_swap + now.num_preemptions_recompute}, recoveries {now.num_recoveries}"
    )
