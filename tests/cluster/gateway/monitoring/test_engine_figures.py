"""What engine replicas report, under the names that operators see."""

import time
from dataclasses import replace

from cluster.gateway.monitoring.engine_figures import BOUNDS, gauges_of, totals_of
from cluster.metrics.catalog import CATALOG
from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.totals import EngineTotals
from engine.records.measures import Measures
from engine.records.stats import EngineStats

NOTHING = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))


def report(replica: str, num_steps: int, problem: str | None = None) -> EngineReport:
    stats = replace(NOTHING, num_steps=num_steps, num_requests_running=2, num_gpu_blocks=10, num_free_gpu_blocks=5)
    return EngineReport(
        replica, "node", 1, problem, stats, totals=EngineTotals(time.time(), 0.5, 16, Measures().copy())
    )


def test_everything_a_replica_reports_has_a_metric_and_its_buckets():
    figures = totals_of(report("one", 5)) | gauges_of([report("one", 5)])
    assert {name for name, _ in figures} <= CATALOG.keys()
    for (name, _), value in figures.items():
        assert not isinstance(value, list) or len(value) == len(BOUNDS[name]) + 2


def test_what_a_prefill_engine_has_served_is_told_by_what_carried_it():
    served = {"tcp": 1, "nixl": 2, "nixl_failed": 1}
    figures = totals_of(replace(report("one", 5), computes_prompts=True, blocks_served=served))
    assert {name for name, _ in figures} <= CATALOG.keys()
    assert {by: figures["squadron:prefill_served_blocks", (by,)] for by in served} == served


def test_replicas_are_numbered_alike_by_everybody():
    reports = [report("b", 1, problem="stuck"), report("a", 1)]
    assert gauges_of(reports) == gauges_of(reports[::-1])
    assert gauges_of(reports)["squadron:engine_up", ("1",)] == 0
    assert gauges_of(reports)["vllm:kv_cache_usage_perc", ("0",)] == 0.5
