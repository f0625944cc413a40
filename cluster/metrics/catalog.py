"""Every metric there is: its name, type, labels and meaning. Those called `vllm:` have the names,
types, labels and buckets that vLLM gives them; `squadron:` ones are ours.

Each series has the label `model_name` too. Totals and histograms are of the whole application,
under `engine="all"`; gauges are of each engine replica that lives, under its number.
"""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()  # beside model_name and engine


def _of_kind(kind: Kind, metrics: dict[str, tuple[str, tuple[str, ...]] | str]) -> dict[str, Metric]:
    return {
        name: Metric(kind, about) if isinstance(about, str) else Metric(kind, *about) for name, about in metrics.items()
    }


GAUGES = _of_kind(
    "gauge",
    {
        "vllm:num_requests_running": "Requests that an engine is computing",
        "vllm:num_requests_waiting": "Requests waiting in an engine",
        "vllm:num_requests_waiting_by_reason": (
            "Of these, those that wait for room (capacity), and for blocks from the folder (deferred)",
            ("reason",),
        ),
        "vllm:num_requests_kv_fetch_by_stage": (
            "Requests for which the folder is read, and those that wait for room after that",
            ("stage",),
        ),
        "vllm:num_requests_swapped": "Requests whose cache is in host memory",
        "vllm:kv_cache_usage_perc": "Fraction of the KV cache in use, 0..1",
        "vllm:engine_sleep_state": (
            "1 for what an engine is: awake, or asleep at level 1 (weights_offloaded) or 2 (discard_all)",
            ("sleep_state",),
        ),
        "vllm:cache_config_info": (
            "Always 1; the labels are the cache's configuration",
            (
                *("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
                *("kv_cache_memory_bytes", "kv_offloading_size", "num_cpu_blocks", "num_gpu_blocks"),
                "num_gpu_blocks_override",
            ),
        ),
        "vllm:lora_requests_info": (
            "When it was told, in seconds since 1970; the labels are adapters of requests (enable_lora)",
            ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        ),
        "squadron:engine_up": "1 if the engine replica can answer now, 0 while it cannot",
    },
)
# Of the application, without the label `engine`.
TOTALS_NOW = _of_kind(
    "gauge",
    {
        "squadron:engines": "Connected engine replicas",
        "squadron:starts_for_requests": "1 if there need be none while there are no requests (min_engines: 0)",
        "squadron:prefill_engines": "Connected replicas that compute prompts for these, if there are to be any",
        "squadron:build_info": ("Always 1; the label is the server's version", ("version",)),
    },
)
COUNTERS = _of_kind(
    "counter",
    {
        "vllm:prompt_tokens": "Prompt tokens of requests that have returned a token",
        "vllm:prompt_tokens_cached": "Of these, those found in the prefix cache",
        "vllm:prompt_tokens_by_source": (
            "Prompt tokens computed, found on the device (local_cache_hit) and found elsewhere (external_kv_transfer)",
            ("source",),
        ),
        "vllm:prompt_tokens_cached_by_source": (
            "Those found: on the device, on the host, or read for the request (external_unspecified)",
            ("source",),
        ),
        "vllm:generation_tokens": "Tokens generated",
        "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
        "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache",
        "vllm:external_prefix_cache_queries": "Prompt tokens not found on the device, looked up on the host",
        "vllm:external_prefix_cache_hits": "Of these, those found there or in the folder (kv_offloading_path)",
        "vllm:num_preemptions": "Preemptions, by swap or recompute",
        "vllm:spec_decode_num_drafts": "Drafts that steps have checked (speculative_config)",
        "vllm:spec_decode_num_draft_tokens": "Tokens of these drafts",
        "vllm:spec_decode_num_accepted_tokens": "Of these, those that were right",
        "vllm:spec_decode_num_accepted_tokens_per_pos": ("Right ones, by place in the draft from 0", ("position",)),
        "vllm:corrupted_requests": "Requests ended because what the model gave for them was not finite",
        "vllm:admission_rejections": ("Requests refused for a full queue, by the limit that they met", ("reason",)),
        "vllm:request_success": ("Ended requests, by reason", ("finished_reason",)),
        "squadron:steps": "Steps computed",
        "squadron:step_seconds": ("Seconds of steps, by rank (or driver) and phase", ("rank", "phase")),
        "squadron:request_phase_seconds": ("Seconds of ended requests in engines, by phase", ("phase",)),
        "squadron:wasted_tokens": ("Tokens computed and discarded, by cause", ("cause",)),
        "squadron:swapped_bytes": ("Bytes of cache moved from (out) and to (in) devices", ("direction",)),
        "squadron:offloaded_bytes": ("Bytes of cache written to (out) and read from (in) the folder", ("direction",)),
        "squadron:offload_missed_blocks": "Blocks that the folder was believed to hold: damaged, or removed",
        "squadron:prefills": ("Prompts given to prefill engines: computed, or failed there", ("outcome",)),
        "squadron:prefill_tokens": "Prompt tokens that prefill engines have computed",
        "squadron:prefill_served_blocks": ("Blocks that they have served to ranks on other nodes", ("transport",)),
        "squadron:recoveries": "Lost workers replaced",
        "squadron:recovery_seconds": "Seconds from a failed step to the end of the next successful one",
        "squadron:failed_steps": "Steps that raised an exception",
        "squadron:quarantined_requests": "Requests ended because steps with them failed",
        "squadron:engine_cpu_seconds": "CPU seconds of engine processes, without workers",
        "squadron:gateway_cpu_seconds": "CPU seconds of gateway processes",
        "squadron:http_requests": ("HTTP responses begun", ("route", "method", "status")),
        "squadron:refused_requests": ("Requests answered with an error, by error code", ("reason",)),
        "squadron:request_moves": "Moves of a request to another engine replica",
        "squadron:request_move_seconds": "Seconds that requests waited during such moves",
        "squadron:shortcut_tokens": "Tokens written without waking a task: of plain streams",
        "squadron:key_requests": ("Requests by name of the API key", ("key",)),
        "squadron:key_refused_requests": ("Requests answered with an error, by name of the API key", ("key", "reason")),
        "squadron:key_tokens": ("Tokens by name of the API key, prompt and generation", ("key", "kind")),
    },
)
# Counted before the model is known: the first label of a series is the model's name, or empty.
NAMING_MODELS = frozenset(
    [
        *("squadron:http_requests", "squadron:refused_requests", "squadron:key_refused_requests"),
        "vllm:admission_rejections",
    ]
)
# Their labels change with what is asked: whoever keeps every series that there was does without.
OF_A_MOMENT = frozenset(["vllm:lora_requests_info"])
# For those who may know the API keys' names.
OF_KEYS = frozenset(name for name, metric in COUNTERS.items() if "key" in metric.labels)
HISTOGRAMS = _of_kind(
    "histogram",
    {
        "vllm:time_to_first_token_seconds": "Time from a request's arrival at a gateway to its first token there",
        "vllm:inter_token_latency_seconds": "Time between tokens of a sequence that came in different steps",
        "vllm:request_time_per_output_token_seconds": "Mean time per token of a request after its first",
        "vllm:e2e_request_latency_seconds": "Time from a request's arrival at a gateway to its end",
        "vllm:request_queue_time_seconds": "Time of a request before it was first scheduled",
        "vllm:request_prefill_time_seconds": "Time of a request from its first scheduling to its first token",
        "vllm:request_decode_time_seconds": "Time of a request from first to last token, without interruptions",
        "vllm:request_inference_time_seconds": "Time of a request after the queue",
        "vllm:request_num_preemptions": "Preemptions of a request",
        "vllm:kv_block_lifetime_seconds": "Time from a block's allocation to its eviction, of a sample of blocks",
        "vllm:kv_block_idle_before_evict_seconds": "Seconds since such a block was found or allocated, at its eviction",
        "vllm:kv_block_reuse_gap_seconds": "Time between two uses of such a block",
        "vllm:iteration_tokens_total": "Tokens computed in a step",
        "vllm:request_prompt_tokens": "Prompt tokens of a request",
        "vllm:request_generation_tokens": "Tokens generated for a request",
        "vllm:request_max_num_generation_tokens": "Tokens of a request's longest choice",
        "vllm:request_prefill_kv_computed_tokens": "Prompt tokens of a request that were not in the cache",
        "vllm:request_params_n": "The parameter n of a request",
        "vllm:request_params_max_tokens": "The parameter max_tokens of a request",
    },
)
CATALOG = GAUGES | TOTALS_NOW | COUNTERS | HISTOGRAMS
