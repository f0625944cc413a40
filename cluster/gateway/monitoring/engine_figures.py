"""An engine replica's report as figures, under the names that operators see."""

from cluster.metrics.catalog import CATALOG
from cluster.metrics.figures import Figures
from cluster.replica.delta_channel.messages import EngineReport
from engine.records.histogram import BETWEEN_TOKENS, OF_A_BLOCK, OF_A_REQUEST, OF_A_STEP, PREEMPTIONS
from engine.records.measures import Measured
from engine.records.stats import EngineStats

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level
MAX_ADAPTERS = 64  # of those that wait, and of those that run, whose names are told
BOUNDS = {
    "vllm:inter_token_latency_seconds": BETWEEN_TOKENS,
    "vllm:iteration_tokens_total": OF_A_STEP,
    "vllm:request_queue_time_seconds": OF_A_REQUEST,
    "vllm:request_prefill_time_seconds": OF_A_REQUEST,
    "vllm:request_decode_time_seconds": OF_A_REQUEST,
    "vllm:request_inference_time_seconds": OF_A_REQUEST,
    "vllm:request_num_preemptions": PREEMPTIONS,
    "vllm:kv_block_lifetime_seconds": OF_A_BLOCK,
    "vllm:kv_block_idle_before_evict_seconds": OF_A_BLOCK,
    "vllm:kv_block_reuse_gap_seconds": OF_A_BLOCK,
}


def totals_of(report: EngineReport) -> Figures:
    """The replica's counts since its start."""
    stats, totals = report.stats, report.totals
    measured = totals.measured
    if report.computes_prompts:
        return _of_prompts(report)
    swapped_out, swapped_in = stats.num_blocks_swapped_out, stats.num_blocks_swapped_in
    figures: Figures = {
        ("vllm:prompt_tokens", ()): measured.num_prompt_tokens,
        ("vllm:prompt_tokens_cached", ()): measured.num_cached_tokens,
        **_by_source(measured),
        ("vllm:generation_tokens", ()): measured.num_tokens,
        ("vllm:prefix_cache_queries", ()): stats.num_prefix_queries,
        ("vllm:prefix_cache_hits", ()): stats.num_prefix_hits,
        ("vllm:external_prefix_cache_queries", ()): stats.num_external_queries,
        ("vllm:external_prefix_cache_hits", ()): stats.num_external_hits,
        ("vllm:corrupted_requests", ()): measured.num_corrupted,
        ("vllm:num_preemptions", ()): stats.num_preemptions_swap + stats.num_preemptions_recompute,
        ("squadron:steps", ()): stats.num_steps,
        ("squadron:wasted_tokens", ("preemption",)): stats.num_wasted_tokens,
        ("squadron:wasted_tokens", ("ran_ahead",)): stats.num_discarded_rows,
        ("squadron:swapped_bytes", ("out",)): swapped_out * totals.block_bytes,
        ("squadron:swapped_bytes", ("in",)): swapped_in * totals.block_bytes,
        ("squadron:offloaded_bytes", ("out",)): stats.num_blocks_stored * totals.block_bytes,
        ("squadron:offloaded_bytes", ("in",)): stats.num_blocks_fetched * totals.block_bytes,
        ("squadron:offload_missed_blocks", ()): stats.num_blocks_missed,
        ("squadron:recoveries", ()): stats.num_recoveries,
        ("squadron:recovery_seconds", ()): measured.recovery_seconds,
        ("squadron:failed_steps", ()): stats.num_failed_steps,
        ("squadron:quarantined_requests", ()): stats.num_quarantined,
        ("squadron:engine_cpu_seconds", ()): totals.cpu_seconds,
        ("squadron:step_seconds", ("driver", "schedule")): stats.schedule_seconds,
        ("squadron:step_seconds", ("driver", "build")): stats.build_seconds,
        ("squadron:step_seconds", ("driver", "wait")): stats.execute_seconds,
        ("squadron:step_seconds", ("driver", "process")): stats.process_seconds,
    }
    for rank, seconds in enumerate(measured.rank_seconds):
        figures["squadron:step_seconds", (str(rank), "execute")] = seconds
    drafts = measured.drafts
    if drafts.num_drafts:
        figures["vllm:spec_decode_num_drafts", ()] = drafts.num_drafts
        figures["vllm:spec_decode_num_draft_tokens", ()] = drafts.num_tokens
        figures["vllm:spec_decode_num_accepted_tokens", ()] = drafts.num_accepted
        for place, count in enumerate(drafts.accepted_at):
            figures["vllm:spec_decode_num_accepted_tokens_per_pos", (str(place),)] = count
    for phase, seconds in measured.phase_seconds.items():
        figures["squadron:request_phase_seconds", (phase,)] = seconds
    for name, values in measured.histograms.items():
        figures[f"vllm:{name}", ()] = values
    return figures


def _by_source(measured: Measured) -> Figures:
    """Prompt tokens: whether they were computed, and else where they were found."""
    cached, on_host, brought = measured.num_cached_tokens, measured.num_host_tokens, measured.num_brought_tokens
    return {
        ("vllm:prompt_tokens_by_source", ("local_compute",)): measured.num_prompt_tokens - cached,
        ("vllm:prompt_tokens_by_source", ("local_cache_hit",)): cached - on_host,
        ("vllm:prompt_tokens_by_source", ("external_kv_transfer",)): on_host,
        ("vllm:prompt_tokens_cached_by_source", ("device",)): cached - on_host,
        ("vllm:prompt_tokens_cached_by_source", ("host",)): on_host - brought,
        ("vllm:prompt_tokens_cached_by_source", ("external_unspecified",)): brought,
    }


def _of_prompts(report: EngineReport) -> Figures:
    """What is not counted where they are answered."""
    totals = report.totals
    return {
        ("squadron:prefill_tokens", ()): totals.measured.num_prompt_tokens - totals.measured.num_cached_tokens,
        **{("squadron:prefill_served_blocks", (by,)): count for by, count in report.blocks_served.items()},
        ("squadron:offloaded_bytes", ("out",)): report.stats.num_blocks_stored * totals.block_bytes,
        ("squadron:engine_cpu_seconds", ()): totals.cpu_seconds,
        ("vllm:corrupted_requests", ()): totals.measured.num_corrupted,
    }


def gauges_of(reports: list[EngineReport]) -> Figures:
    """The current state of the running replicas. They are numbered in the order of their names, so
    that every gateway uses the same numbers.
    """
    answering = [report for report in reports if not report.computes_prompts]
    figures: Figures = {("squadron:engines", ()): len(answering)}
    if len(answering) < len(reports):
        figures["squadron:prefill_engines", ()] = len(reports) - len(answering)
    for number, report in enumerate(sorted(answering, key=lambda report: report.replica)):
        stats, labels = report.stats, (str(number),)
        figures |= _of_waiting(stats, *labels) | _of_configuration(report, *labels)
        figures["vllm:num_requests_running", labels] = stats.num_requests_running
        figures["vllm:num_requests_waiting", labels] = stats.num_requests_waiting
        figures["vllm:num_requests_swapped", labels] = stats.num_requests_swapped
        figures["vllm:kv_cache_usage_perc", labels] = stats.kv_cache_usage if stats.num_gpu_blocks else 0.0
        figures["squadron:engine_up", labels] = float(report.problem is None)
    return figures


def _of_waiting(stats: EngineStats, engine: str) -> Figures:
    fetching = stats.num_requests_fetching
    return {
        ("vllm:num_requests_waiting_by_reason", (engine, "capacity")): stats.num_requests_waiting - fetching,
        ("vllm:num_requests_waiting_by_reason", (engine, "deferred")): fetching,
        ("vllm:num_requests_kv_fetch_by_stage", (engine, "in_progress")): fetching,
        ("vllm:num_requests_kv_fetch_by_stage", (engine, "completed_waiting")): stats.num_requests_fetched,
    }


def _of_configuration(report: EngineReport, engine: str) -> Figures:
    """Also of how the engine is now: whether it sleeps, and which adapters its requests have."""
    stats, cache = report.stats, report.cache
    cache = {**cache, "num_cpu_blocks": str(stats.num_cpu_blocks), "num_gpu_blocks": str(stats.num_gpu_blocks)}
    labels = [cache.get(name, "") for name in CATALOG["vllm:cache_config_info"].labels]
    figures: Figures = {("vllm:cache_config_info", (engine, *labels)): 1}
    for level, state in enumerate(SLEEP_STATES):
        figures["vllm:engine_sleep_state", (engine, state)] = float(report.sleep_level == level)
    if report.adapters is not None:
        names = (",".join(each[:MAX_ADAPTERS]) for each in (report.adapters.running, report.adapters.waiting))
        labels = [str(report.adapters.max_loras), *names]
        figures["vllm:lora_requests_info", (engine, *labels)] = report.totals.made
    return figures
