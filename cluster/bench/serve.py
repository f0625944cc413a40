"""`squadron bench serve`: requests arrive at given times, whether the server keeps up or not (an
open loop).
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

from cluster.bench.client import Client, Exchange
from cluster.bench.report import Outcome, count_failures, rates
from cluster.bench.workload import Work, generator, poisson_arrivals, random_works
from cluster.progress import progress
from engine.errors import InvalidConfig

OBJECTIVES = ("ttft", "tpot", "e2el")

Objective = tuple[str, float]  # a metric, and its limit in milliseconds


def measure(options: argparse.Namespace) -> Outcome:
    """Send the requests and measure them. Raises InvalidConfig if a first request, which is not
    counted, fails.
    """
    random = generator(options.seed)
    shape = options.input_len, options.output_len, options.vocab_size
    works = random_works(random, options.num_prompts, *shape)
    arrivals = poisson_arrivals(random, options.num_prompts, options.request_rate)
    (trial,) = random_works(random, 1, *shape)  # of which the server may keep the prompt
    exchanges, seconds = asyncio.run(_exchange(options, trial, works, arrivals))
    return outcome(exchanges, seconds, options.goodput)


async def _exchange(
    options: argparse.Namespace, trial: Work, works: Sequence[Work], arrivals: Sequence[float]
) -> tuple[list[Exchange], float]:
    """All exchanges in order of arrival, and the seconds from the first arrival to the last end."""
    async with Client(options.base_url, api_key=options.api_key, temperature=options.temperature) as client:
        model = options.model or await client.first_model()
        tried = await client.complete(model, trial, time.perf_counter())
        if tried.error is not None:
            raise InvalidConfig(f"{options.base_url} cannot be measured: {tried.error}")
        slots = asyncio.Semaphore(options.max_concurrency or len(works))
        start = time.perf_counter()
        with progress(total=len(works), desc="requests") as bar:

            async def one(work: Work, arrival: float) -> Exchange:
                await asyncio.sleep(start + arrival - time.perf_counter())
                async with slots:
                    exchange = await client.complete(model, work, start + arrival)
                bar.update()
                return exchange

            exchanges = await asyncio.gather(*map(one, works, arrivals))
        return exchanges, time.perf_counter() - start


def objective(text: str) -> Objective:
    """From "ttft:200"; raises ArgumentTypeError."""
    name, _, limit = text.partition(":")
    try:
        milliseconds = float(limit)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a metric and milliseconds, as in ttft:200") from None
    if name not in OBJECTIVES:
        raise argparse.ArgumentTypeError(f"there is no objective {name!r}; there are {', '.join(OBJECTIVES)}")
    return name, milliseconds


def outcome(exchanges: Sequence[Exchange], seconds: float, objectives: Sequence[Objective]) -> Outcome:
    """The field's metrics, in ms.

    TTFT: from sending to the first token; E2EL: to the last one; TPOT: the time between these,
    divided by the number of tokens after the first; ITL: between two events, however many tokens
    each has. Lag: from a request's arrival to its sending, while it waits for --max-concurrency or
    for a slow client.
    """
    done = [exchange for exchange in exchanges if exchange.error is None]
    times = [_times(exchange) for exchange in done]
    num_input, num_output = sum(one.num_input for one in done), sum(one.num_output for one in done)
    figures = rates(len(done), num_input, num_output, seconds)
    if objectives:
        good = sum(all(one.get(name, 0.0) <= limit for name, limit in objectives) for one in times)
        figures["goodput, requests/s"] = good / seconds
    samples = {
        "TTFT": [one["ttft"] for one in times],
        "TPOT": [one["tpot"] for one in times if "tpot" in one],
        "ITL": [
            1000 * (after - before) for exchange in done for before, after in pairwise(dict.fromkeys(exchange.pieces))
        ],
        "E2EL": [one["e2el"] for one in times],
        "lag": [1000 * (exchange.sent - exchange.due) for exchange in exchanges],
    }
    return Outcome(len(exchanges), figures, samples, count_failures(exchange.error for exchange in exchanges))


def _times(exchange: Exchange) -> dict[str, float]:
    """In ms; an answer of one token has no TPOT."""
    first, last = exchange.pieces[0] - exchange.sent, exchange.pieces[-1] - exchange.sent
    times = {"ttft": 1000 * first, "e2el": 1000 * last}
    if exchange.num_output > 1:
        times["tpot"] = 1000 * (last - first) / (exchange.num_output - 1)
    return times
