"""Requests that make every step fail that they are in, and their neighbours."""

from engine.sampling_params import SamplingParams
from tests.engine.support.workloads import Knobs, Request, essence, make_engine, run

POISON = 36  # a token id that no other request's prompt has; answers may


def neighbours(count: int, *, max_tokens: int = 12) -> list[Request]:
    params = {"max_tokens": max_tokens, "ignore_eos": True, "logit_bias": {POISON: -100.0}}
    return [
        Request(
            f"r{n}", [n % 35, *[(n * 7 + k) % 35 for k in range(n % 20)]], SamplingParams(seed=n, **params), 0, None
        )
        for n in range(count)
    ]


def poisoned(name: str = "poison") -> Request:
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    return Request(name, [3, 4, POISON, 5], params, 0, None)


def alone(requests: list[Request]) -> dict[str, object]:
    return {
        request.request_id: essence(run(make_engine(Knobs()), [request])[request.request_id]) for request in requests
    }
