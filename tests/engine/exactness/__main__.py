"""The promise of exactness on the demo checkpoint, measured: how many requests, how many differ.

    python -m tests.engine.exactness [X2 X3 X4 T20] [--requests 300] [--speculative] [...]

On the C++ kernels in bfloat16, tokens, text, finish reasons and logprobs must be the same to the
bit as when each request ran alone, without drafts, on an engine with room for everything. X2: in
random batches. X3: chunks of 1, 7, 64 and whole, cache hit and miss, preempted by swap and by
recompute. X4: resumed at every cut. T20: a cache of a quarter of the demand.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

from engine.core.llm_engine import LLMEngine
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import KINDS, SPECULATION
from tests.engine.support.demo import Request, answers, demo_engine, every_bit, held_out_prompts, resumed, streamed

MAX_TOKENS = 24
KERNELS: dict[str, object] = {"ops_backend": "cpu", "dtype": "bfloat16"}


def make_requests(count: int) -> list[Request]:
    prompts = held_out_prompts(count)
    return [(p, SamplingParams(**KINDS[n % len(KINDS)], seed=n, max_tokens=MAX_TOKENS)) for n, p in enumerate(prompts)]


def plain_engine() -> AbstractContextManager[LLMEngine]:
    return demo_engine(**(KERNELS | {"speculative_config": None}), enable_prefix_caching=False)


def alone(requests: list[Request]) -> list[RequestOutput]:
    with plain_engine() as engine:
        return [answers(engine, [request])[0] for request in requests]


def x2(requests: list[Request], expected: list[RequestOutput]) -> Iterator[tuple[str, int, int]]:
    rng = random.Random(0)
    order = list(range(len(requests)))
    rng.shuffle(order)
    got: dict[int, RequestOutput] = {}
    with demo_engine(**KERNELS) as engine:
        while len(got) < len(order):
            batch = order[len(got) : len(got) + rng.randint(1, 32)]
            got |= dict(zip(batch, answers(engine, [requests[n] for n in batch]), strict=True))
    yield "X2 random batches of 1-32", len(got), differing([got[n] for n in range(len(requests))], expected)


def x3(requests: list[Request], expected: list[RequestOutput]) -> Iterator[tuple[str, int, int]]:
    for chunk in (1, 7, 64, 0):
        for caching in (False, True):
            label = f"X3 chunks of {chunk or 'whole'}, cache {'on, asked twice' if caching else 'off'}"
            with demo_engine(**KERNELS, long_prefill_token_threshold=chunk, enable_prefix_caching=caching) as engine:
                if caching:
                    answers(engine, requests)
                yield label, len(requests), differing(answers(engine, requests), expected)
    for how, swap_space in (("swap", 0.1), ("recompute", 0.0)):
        small = {"num_gpu_blocks_override": 40, "max_model_len": 624, "watermark": 0.0, "swap_space": swap_space}
        with demo_engine(**KERNELS, **small) as engine:
            count = differing(answers(engine, requests), expected)
            stats = engine.stats()
        preempted = stats.num_preemptions_swap + stats.num_preemptions_recompute
        yield f"X3 preempted {preempted} times ({how})", len(requests), count


def x4(requests: list[Request], expected: list[RequestOutput]) -> Iterator[tuple[str, int, int]]:
    cuts, wrong = 0, 0
    with plain_engine() as plain, demo_engine(**KERNELS) as engine:
        for request, whole in zip(requests, expected, strict=True):
            deltas = streamed(plain, request)
            for cut in range(1, max(len(choice.token_ids) for choice in whole.outputs)):
                cuts += 1
                wrong += differing([resumed(engine, request, deltas, cut)], [whole])
    yield f"X4 resumed at every cut of {len(requests)} requests", cuts, wrong


def t20(requests: list[Request], expected: list[RequestOutput]) -> Iterator[tuple[str, int, int]]:
    demand = sum(params.num_samples * -(-(len(prompt) + MAX_TOKENS) // 16) for prompt, params in requests[:64])
    small = {"num_gpu_blocks_override": demand // 4, "max_model_len": (demand // 4 - 1) * 16, "watermark": 0.0}
    with demo_engine(**KERNELS, **small, max_num_seqs=128) as engine:
        got = answers(engine, requests[:64])
        stats = engine.stats()
    preempted = stats.num_preemptions_swap + stats.num_preemptions_recompute
    yield f"T20 a quarter of the cache, {preempted} preemptions", len(got), differing(got, expected[:64])


def differing(got: list[RequestOutput], expected: list[RequestOutput]) -> int:
    return sum(every_bit(a) != every_bit(b) for a, b in zip(got, expected, strict=True))


CHECKS = {"X2": x2, "X3": x3, "X4": x4, "T20": t20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}; default: all")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--quantization", choices=("int8", "int4"))
    parser.add_argument("--speculative", action="store_true", help="check drafts in every step that may")
    parser.add_argument("--draft-model", metavar="FOLDER", help="which guesses in every step that may")
    arguments = parser.parse_args()
    KERNELS["quantization"] = arguments.quantization
    KERNELS.update(SPECULATION if arguments.speculative else {})
    if arguments.draft_model is not None:
        KERNELS["speculative_config"] = {"model": arguments.draft_model}
    requests = make_requests(arguments.requests)
    expected = alone(requests)
    total = 0
    for name in arguments.checks or CHECKS:
        for label, count, wrong in CHECKS[name](requests, expected):
            print(f"{label:<58} {count:>6} compared  {wrong:>4} differ", flush=True)
            total += wrong
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
