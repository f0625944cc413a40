"""What a gateway counts of a request that has ended."""

import asyncio

import pytest

from cluster.gateway.monitoring.request_figures import RequestFigures
from cluster.gateway.requests.journal import Journal
from cluster.metrics.counters import Counters
from engine.errors import EngineDead, InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Request, Share
from engine.sampling_params import SamplingParams


def ended(journal_of: Request, error: BaseException | None = None, *, tokens: int = 3) -> Counters:
    """The counters after that request has ended."""
    figures = RequestFigures()
    journal = Journal("r", journal_of)
    if tokens:
        output = CompletionOutput(0, "x", list(range(tokens)), finish_reason=None if error else "stop")
        journal.accept(RequestOutput("r", 0, [1, 2], [output], error is None, num_cached_tokens=1), "source")
    figures.ended(journal, error)
    return figures.counters


REQUEST = Request("r", [1, 2], SamplingParams(max_tokens=8), share=Share("alice"))


def test_a_request_is_observed_once_when_it_has_ended():
    figures = ended(REQUEST).figures()
    assert figures["vllm:request_success", ("stop",)] == 1
    assert figures["squadron:key_requests", ("alice",)] == 1
    assert figures["squadron:key_tokens", ("alice", "generation")] == 3
    assert figures["squadron:key_tokens", ("alice", "prompt")] == 2
    for name, total in (
        ("vllm:request_generation_tokens", 3),
        ("vllm:request_prompt_tokens", 2),
        ("vllm:request_prefill_kv_computed_tokens", 1),
        ("vllm:request_params_n", 1),
    ):
        histogram = figures[name, ()]
        assert isinstance(histogram, list) and (sum(histogram[:-1]), histogram[-1]) == (1, total)


@pytest.mark.parametrize(
    ("error", "tokens", "reason"),
    [
        (EngineDead("no engine"), 0, "error"),
        (InvalidRequest("late"), 3, "error"),
        (InvalidRequest("refused"), 0, None),
        (GeneratorExit(), 3, "abort"),
        (asyncio.CancelledError(), 0, "abort"),
    ],
)
def test_how_a_request_ends_is_counted_and_a_refused_one_is_none(error, tokens, reason):
    figures = ended(REQUEST, error, tokens=tokens).figures()
    counted = {labels[0] for (name, labels), value in figures.items() if name == "vllm:request_success" and value}
    assert counted == ({reason} if reason else set())
    latencies = figures["vllm:e2e_request_latency_seconds", ()]
    assert isinstance(latencies, list) and sum(latencies) == 0
