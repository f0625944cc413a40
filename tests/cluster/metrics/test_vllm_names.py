"""Panels that were written for vLLM find what they look for: every name that it has is on a page
as a gateway renders it, with its type, labels and buckets, or in the documented list of those left
out.
"""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster.api.edge.counting import HttpCounts
from cluster.gateway.monitoring.monitoring import Monitoring
from cluster.gateway.monitoring.request_figures import RequestFigures
from cluster.replica.delta_channel.messages import AdaptersInUse
from engine.records.measures import Drafts
from tests.cluster.gateway.monitoring.test_engine_figures import report

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
MAX_MODEL_LEN = 4096
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
SECONDS = {
    "first token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "token": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    ),
    "request": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
        *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
    "block": (
        *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
        *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
    ),
}
# Those of vLLM 0.33, beside the labels model_name and engine.
GAUGES = {
    "num_requests_running": "",
    "num_requests_waiting": "",
    "num_requests_waiting_by_reason": "reason",
    "num_requests_kv_fetch_by_stage": "stage",
    "kv_cache_usage_perc": "",
    "engine_sleep_state": "sleep_state",
    "lora_requests_info": "max_lora running_lora_adapters waiting_lora_adapters",
    "cache_config_info": "block_size cache_dtype num_gpu_blocks enable_prefix_caching",  # and more
    "num_requests_swapped": "",  # of old versions, and in Ray's dashboards
    "gpu_cache_usage_perc": "",  # of old versions
}
COUNTERS = {
    "prompt_tokens": "",
    "generation_tokens": "",
    "prompt_tokens_cached": "",
    "prompt_tokens_cached_by_source": "source",
    "prompt_tokens_by_source": "source",
    "prefix_cache_queries": "",
    "prefix_cache_hits": "",
    "external_prefix_cache_queries": "",
    "external_prefix_cache_hits": "",
    "mm_cache_queries": "",
    "mm_cache_hits": "",
    "num_preemptions": "",
    "request_success": "finished_reason",
    "admission_rejections": "reason",
    "corrupted_requests": "",
    "spec_decode_num_drafts": "",
    "spec_decode_num_draft_tokens": "",
    "spec_decode_num_accepted_tokens": "",
    "spec_decode_num_accepted_tokens_per_pos": "position",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": SECONDS["first token"],
    "inter_token_latency_seconds": SECONDS["token"],
    "time_per_output_token_seconds": SECONDS["token"],  # of old versions
    "request_time_per_output_token_seconds": SECONDS["token"],
    "e2e_request_latency_seconds": SECONDS["request"],
    "request_queue_time_seconds": SECONDS["request"],
    "request_inference_time_seconds": SECONDS["request"],
    "request_prefill_time_seconds": SECONDS["request"],
    "request_decode_time_seconds": SECONDS["request"],
    "iteration_tokens_total": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_prefill_kv_computed_tokens": TOKENS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": TOKENS,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "kv_block_lifetime_seconds": SECONDS["block"],
    "kv_block_idle_before_evict_seconds": SECONDS["block"],
    "kv_block_reuse_gap_seconds": SECONDS["block"],
}
# Values of labels that panels select.
VALUES = {
    ("num_requests_waiting_by_reason", "reason"): {"capacity", "deferred"},
    ("num_requests_kv_fetch_by_stage", "stage"): {"in_progress", "completed_waiting"},
    ("engine_sleep_state", "sleep_state"): {"awake", "weights_offloaded", "discard_all"},
    ("prompt_tokens_by_source", "source"): {"local_compute", "local_cache_hit", "external_kv_transfer"},
    ("prompt_tokens_cached_by_source", "source"): {"device", "host", "external_unspecified"},
    ("request_success", "finished_reason"): {"stop", "length", "abort", "error"},
    ("admission_rejections", "reason"): {
        *("max_num_queued_reqs", "max_num_queued_tokens", "max_queue_seconds", "timeout")
    },
}


def page() -> dict[str, Metric]:
    """As a gateway renders it, of an engine that has everything; by the name without `vllm:`."""
    engine = report("one", 5)
    measured = replace(engine.totals.measured, drafts=Drafts(1, 2, 1, [1, 0]))
    engine = replace(
        engine, totals=replace(engine.totals, measured=measured), adapters=AdaptersInUse(["b"], ["a", "c"], 8)
    )
    figures = RequestFigures(MAX_MODEL_LEN)
    HttpCounts(figures.counters, ["m"])
    text = Monitoring("m", figures.counters, lambda: [engine], lambda: [engine]).text().decode()
    return {
        family.name.removeprefix("vllm:"): family
        for family in text_string_to_metric_families(text)
        if family.name.startswith("vllm:")
    }


def left_out() -> set[str]:
    """Names without `vllm:` and `_total`, of the page for operators."""
    table = PAGE.read_text(encoding="utf-8").partition("### What vLLM has and this has not")[2]
    rows = re.findall(r"^\| (`vllm:[^|]*) \| (\w[^|]*) \|$", table, re.MULTILINE)
    return {name for names, _ in rows for name in re.findall(r"`vllm:(\w+?)(?:_total)?`", names)}


def test_every_name_is_on_the_page_or_documented_as_left_out() -> None:
    names = GAUGES.keys() | COUNTERS.keys() | HISTOGRAMS.keys()
    there = page().keys()
    assert names - there == left_out()
    assert there - names == set(), "names of vLLM's that it does not have"


def test_types_labels_and_buckets_are_vllms() -> None:
    kinds = dict.fromkeys(GAUGES, "gauge") | dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram")
    labels = GAUGES | COUNTERS | dict.fromkeys(HISTOGRAMS, "le")
    for name, family in page().items():
        assert family.type == kinds[name], name
        wanted = {"model_name", "engine", *labels[name].split()}
        for sample in family.samples:
            is_bucket = family.type != "histogram" or sample.name.endswith("_bucket")
            found = sample.labels.keys() | (set() if is_bucket else {"le"})
            assert found == wanted or (name == "cache_config_info" and found > wanted), (name, found)
        if name in HISTOGRAMS:
            bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
            assert bounds == [*HISTOGRAMS[name], float("inf")], name
    for (name, label), values in VALUES.items():
        assert {sample.labels[label] for sample in page()[name].samples} == values


def test_adapters_are_named_in_one_series() -> None:
    (sample,) = page()["lora_requests_info"].samples
    assert (sample.labels["running_lora_adapters"], sample.labels["waiting_lora_adapters"]) == ("b", "a,c")
    assert sample.labels["max_lora"] == "8"
