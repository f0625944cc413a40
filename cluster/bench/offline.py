"""`squadron bench latency` and `throughput`: the engine alone, in this process for one rank,
otherwise on Ray.
"""

import argparse
import time

from cluster.bench.report import Outcome, count_failures, rates
from cluster.bench.workload import Lengths, Work, generator, random_works
from cluster.commands.options import engine_arguments, fetched_config
from cluster.llm import LLM
from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.outputs import RequestOutput

WARM_UP = Lengths(16, 16)


def latency(options: argparse.Namespace) -> Outcome:
    """For each batch size, the time of a whole batch and of its requests; batches with a failed
    request are left out.
    """
    config = _config(options)
    for batch_size in options.batch_size:
        if batch_size > config.max_num_seqs:
            raise InvalidConfig(f"a batch of {batch_size} exceeds max_num_seqs={config.max_num_seqs}")
    random, vocab_size = generator(config.seed), ModelConfig.load(config.model).vocab_size
    outcome = Outcome(sum(options.batch_size) * options.num_iters, {}, {})
    with LLM(**config.model_dump()) as llm:
        for batch_size in options.batch_size:
            times: list[float] = []
            done: list[RequestOutput] = []
            name = f"batch {batch_size}"
            for number in progress(iterable=range(-options.num_iters_warmup, options.num_iters), desc=name):
                works = random_works(random, batch_size, options.input_len, options.output_len, vocab_size)
                started = time.perf_counter()
                outputs = _generate(llm, works)
                seconds = time.perf_counter() - started
                failures = count_failures(output.error for output in outputs)
                if number < 0:
                    continue
                outcome.failures.update(failures)
                if not failures:
                    times.append(1000 * seconds)
                    done += outputs
            outcome.samples[f"{name}, latency"] = times
            outcome.samples.update({f"{name}, {metric}": values for metric, values in _samples(done).items()})
    return outcome


def throughput(options: argparse.Namespace) -> Outcome:
    """All requests at once, as fast as the engine can; one request runs before them and is not
    measured.
    """
    config = _config(options)
    random, vocab_size = generator(config.seed), ModelConfig.load(config.model).vocab_size
    works = random_works(random, options.num_prompts, options.input_len, options.output_len, vocab_size)
    with LLM(**config.model_dump()) as llm:
        _generate(llm, random_works(random, 1, WARM_UP, WARM_UP, vocab_size))
        started = time.perf_counter()
        outputs = _generate(llm, works, use_tqdm=True)
        seconds = time.perf_counter() - started
    done = [output for output in outputs if output.error is None]
    num_input = sum(len(output.prompt_token_ids) for output in done)
    num_output = sum(len(output.outputs[0].token_ids) for output in done)
    figures = rates(len(done), num_input, num_output, seconds)
    return Outcome(len(works), figures, _samples(done), count_failures(output.error for output in outputs))


def _config(options: argparse.Namespace) -> EngineConfig:
    return fetched_config(model=options.model, **engine_arguments(options))


def _generate(llm: LLM, works: list[Work], *, use_tqdm: bool = False) -> list[RequestOutput]:
    return llm.generate([work.prompt for work in works], [work.params for work in works], use_tqdm=use_tqdm)


def _samples(outputs: list[RequestOutput]) -> dict[str, list[float]]:
    """In ms, from when the requests were added to the engine."""
    samples: dict[str, list[float]] = {"TTFT": [], "TPOT": [], "E2EL": []}
    for output in outputs:
        metrics, num_tokens = output.metrics, len(output.outputs[0].token_ids)
        assert metrics is not None and metrics.first_token_time is not None and metrics.finished_time is not None
        samples["TTFT"].append(1000 * (metrics.first_token_time - metrics.arrival_time))
        samples["E2EL"].append(1000 * (metrics.finished_time - metrics.arrival_time))
        if num_tokens > 1:
            samples["TPOT"].append(1000 * (metrics.finished_time - metrics.first_token_time) / (num_tokens - 1))
    return samples
