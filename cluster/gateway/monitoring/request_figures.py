"""A gateway's figures of its requests, each counted once when it has ended."""

import time
from collections.abc import Sequence

from cluster.gateway.monitoring.watch import reasons_of
from cluster.gateway.requests.journal import Journal
from cluster.metrics.counters import Counters
from engine.errors import InvalidRequest, Overloaded
from engine.records.histogram import BETWEEN_TOKENS, FIRST_TOKEN, OF_A_REQUEST, up_to

FINISHED_REASONS = ("stop", "length", "abort", "error")
UNBOUNDED = 1 << 20  # tokens
_OF_TOKENS = (
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_params_max_tokens",
)


class RequestFigures:
    """Lives in one event loop; a few counts per request, none per token."""

    def __init__(self, max_model_len: int = UNBOUNDED) -> None:
        """`max_model_len`: where the buckets of tokens end."""
        self.counters = Counters(own_bounds(max_model_len))
        for reason in FINISHED_REASONS:  # from 0 on, so that the first one shows as an increase
            self.counters.count("vllm:request_success", reason, by=0)
        for name in ("squadron:request_moves", "squadron:request_move_seconds", "squadron:shortcut_tokens"):
            self.counters.count(name, by=0)

    def ended(self, journal: Journal, error: BaseException | None) -> None:
        """Count a request that has ended, with the exception that ended it, if any. A rejected
        request is not counted as a request.
        """
        count, key = self.counters.count, journal.request.share.key
        count("squadron:request_moves", by=journal.num_moves)
        count("squadron:request_move_seconds", by=journal.move_seconds)
        count("squadron:shortcut_tokens", by=journal.num_shortcut_tokens)
        if key is not None:
            count("squadron:key_requests", key)
        if isinstance(error, InvalidRequest | Overloaded) and journal.first_token_time is None:
            return
        count("vllm:request_success", _reason(journal, error))
        lengths = [len(token_ids) for token_ids in journal.output_ids] or [0]
        if key is not None:
            count("squadron:key_tokens", key, "prompt", by=len(journal.prompt_token_ids))
            count("squadron:key_tokens", key, "generation", by=sum(lengths))
        if error is None and journal.first_token_time is not None and not journal.began_elsewhere:
            self._observe(journal, journal.first_token_time, lengths)

    def prefilled(self, outcome: str) -> None:
        """A prompt has been computed by a prefill engine, or was to be."""
        self.counters.count("squadron:prefills", outcome)

    def _observe(self, journal: Journal, first_token_time: float, lengths: list[int]) -> None:
        observe, now = self.counters.observe, time.monotonic()
        observe("vllm:time_to_first_token_seconds", first_token_time - journal.opened)
        observe("vllm:e2e_request_latency_seconds", now - journal.opened)
        if max(lengths) > 1:
            mean = (now - first_token_time) / (max(lengths) - 1)
            observe("vllm:request_time_per_output_token_seconds", mean)
        num_prompt_tokens = len(journal.prompt_token_ids)
        observe("vllm:request_prompt_tokens", num_prompt_tokens)
        observe("vllm:request_prefill_kv_computed_tokens", num_prompt_tokens - journal.num_cached_tokens)
        observe("vllm:request_generation_tokens", sum(lengths))
        observe("vllm:request_max_num_generation_tokens", max(lengths))
        observe("vllm:request_params_n", journal.request.params.n)
        if journal.max_tokens is not None:
            observe("vllm:request_params_max_tokens", journal.max_tokens)


def own_bounds(max_model_len: int) -> dict[str, Sequence[float]]:
    """Of the buckets of a gateway's own histograms; those of tokens end at `max_model_len`."""
    return {
        "vllm:time_to_first_token_seconds": FIRST_TOKEN,
        "vllm:request_time_per_output_token_seconds": BETWEEN_TOKENS,
        "vllm:e2e_request_latency_seconds": OF_A_REQUEST,
        "vllm:request_params_n": (1, 2, 5, 10, 20),
        **dict.fromkeys(_OF_TOKENS, up_to(max_model_len)),
    }


def _reason(journal: Journal, error: BaseException | None) -> str:
    """One of FINISHED_REASONS: the error if any choice has one, else the reason of the choice that
    ended last.
    """
    if error is not None:
        return "error" if isinstance(error, Exception) else "abort"
    reasons = list(reasons_of(journal).values())
    return "error" if "error" in reasons else reasons[-1] if reasons else "abort"
