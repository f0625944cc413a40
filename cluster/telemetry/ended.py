"""How a request ended, for a log line and a span: numbers, ids and words of ours."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.telemetry.tracing import Value

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that a gateway has had. Seconds are the gateway's own, those of phases the
    engine's.
    """

    id: str  # the client's
    model: str
    key: str | None = None  # the name of the API key that it came with
    status: int  # HTTP's, of the whole answer; 499: the client had gone
    code: str | None  # of the error that it ended with
    finish_reasons: tuple[str, ...]  # of the choices that ended
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_attempts: int
    e2e_seconds: float
    ttft_seconds: float | None  # None: no token came
    # Seconds, on the last engine replica:
    phases: Mapping[str, float] = field(default_factory=dict)  # of each
    scheduler_seconds: float | None = None  # that steps were scheduled while it ran
    execute_seconds: float | None = None  # that ranks worked while it ran

    @property
    def inference_seconds(self) -> float | None:
        """After the queue; None for a request that was never scheduled."""
        after = [seconds for phase, seconds in self.phases.items() if phase != "queue"]
        return sum(after) if after else None

    def fields(self) -> dict[str, str | int | float]:
        """For a line of the log, under names that are none of logging's own."""
        found: dict[str, str | int | float | None] = {
            "id": self.id,
            "model": self.model,
            "key": self.key,
            "status": self.status,
            "code": self.code,
            "finish_reasons": ",".join(self.finish_reasons) or None,
            "prompt_tokens": self.num_prompt_tokens,
            "output_tokens": self.num_output_tokens,
            "cached_tokens": self.num_cached_tokens,
            "attempts": self.num_attempts,
            "queue_seconds": _rounded(self.phases.get("queue")),
            "ttft_seconds": _rounded(self.ttft_seconds),
            "e2e_seconds": _rounded(self.e2e_seconds),
        }
        return {name: value for name, value in found.items() if value is not None}

    def attributes(self) -> dict[str, Value]:
        """For a span, as OpenTelemetry's conventions for generative AI name them, and as vLLM
        does.
        """
        found: dict[str, Value | None] = {
            "gen_ai.response.id": self.id,
            "gen_ai.request.id": self.id,
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            "gen_ai.response.finish_reasons": self.finish_reasons,
            "gen_ai.usage.input_tokens": self.num_prompt_tokens,
            "gen_ai.usage.output_tokens": self.num_output_tokens,
            "gen_ai.usage.prompt_tokens": self.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": self.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.num_cached_tokens,
            "gen_ai.latency.time_to_first_token": self.ttft_seconds,
            "gen_ai.latency.e2e": self.e2e_seconds,
            "gen_ai.latency.time_in_queue": self.phases.get("queue"),
            "gen_ai.latency.time_in_model_prefill": self.phases.get("prefill"),
            "gen_ai.latency.time_in_model_decode": self.phases.get("decode"),
            "gen_ai.latency.time_in_model_inference": self.inference_seconds,
            "gen_ai.latency.time_in_scheduler": self.scheduler_seconds,
            "gen_ai.latency.time_in_model_execute": self.execute_seconds,
            "http.response.status_code": self.status,
            "squadron.key": self.key,
            "squadron.attempts": self.num_attempts,
        }
        return {name: value for name, value in found.items() if value is not None}


def as_text(fields: Mapping[str, str | int | float]) -> str:
    """`name=value` of each, on one line whatever they hold."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items())


def _shown(value: str | int | float) -> str:
    return json.dumps(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else str(value)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
