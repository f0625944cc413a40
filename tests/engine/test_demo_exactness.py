"""The demo checkpoint in float32 says the same alone and in company, in chunks, from the cache, after swaps, and resumed."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.config import EngineConfig, ModelConfig
from engine.llm_engine import LLMEngine
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.engine.workloads import DEMO, TOKENIZER

NUM_REQUESTS = 24


@dataclass(frozen=True)
class Variant:
    """A way to run the same requests."""

    overrides: dict[str, object]
    together: int  # requests at once


VARIANTS = {
    "in company": Variant({}, 24),
    "chunks of 1": Variant({"long_prefill_token_threshold": 1, "max_num_seqs": 6}, 24),
    "chunks of 7": Variant({"long_prefill_token_threshold": 7, "enable_prefix_caching": False}, 12),
    "a small batch": Variant({"max_num_seqs": 4, "max_num_batched_tokens": 33}, 24),
    "a small cache, swapped": Variant({"num_gpu_blocks_override": 26, "swap_space": 0.05, "watermark": 0.0}, 24),
    "a small cache, recomputed": Variant({"num_gpu_blocks_override": 26, "swap_space": 0.0, "watermark": 0.0}, 24),
}


@pytest.fixture
def make_engine():
    executors = []

    def make(**overrides):
        arguments = {"model": DEMO, "dtype": "float32", "ops_backend": "reference", "kv_cache_memory_bytes": 2**25}
        config = EngineConfig.create(**(arguments | overrides))
        executors.append(LocalExecutor(config))
        engine = LLMEngine(config, ModelConfig.load(DEMO), TOKENIZER, executors[-1])
        engine.start()
        return engine

    yield make
    for executor in executors:
        executor.shutdown()


def requests():
    """Prompts of the held-out set with all kinds of sampling."""
    lines = (Path(DEMO) / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    rng = random.Random(0)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.9, "n": 2},
        {"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
        {"temperature": 0.7, "min_p": 0.05, "logprobs": 2, "stop": ["e"]},
        {"temperature": 1.0, "min_tokens": 5, "stop_token_ids": [40]},
    ]
    made = []
    for number in range(NUM_REQUESTS):
        prompt = TOKENIZER.encode_chat(json.loads(rng.choice(lines))["messages"])
        made.append((prompt, SamplingParams(**kinds[number % len(kinds)], seed=number, max_tokens=20)))
    return made


def answers(engine, batch):
    joined = [Accumulator() for _ in batch]
    for number, (prompt, params) in enumerate(batch):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined[int(output.request_id)].add(output)
    return [[(c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in total.last.outputs] for total in joined]


@pytest.fixture(scope="module")
def alone():
    """Each request by itself."""
    config = EngineConfig.create(
        model=DEMO, dtype="float32", ops_backend="reference", kv_cache_memory_bytes=2**25, enable_prefix_caching=False
    )
    executor = LocalExecutor(config)
    engine = LLMEngine(config, ModelConfig.load(DEMO), TOKENIZER, executor)
    engine.start()
    yield [answers(engine, [request])[0] for request in requests()]
    executor.shutdown()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_answers_are_those_given_alone(make_engine, alone, variant):
    engine = make_engine(**variant.overrides)
    batch = requests()
    got = []
    for start in range(0, len(batch), variant.together):
        got += answers(engine, batch[start : start + variant.together])
    assert got == alone
    stats = engine.stats()
    if "num_gpu_blocks_override" in variant.overrides:
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0


def test_resumed_at_every_fourth_token(make_engine, alone):
    engine = make_engine()
    for (prompt, params), whole in zip(requests(), alone, strict=True):
        if len(whole) > 1:
            continue
        token_ids = whole[0][0]
        for cut in range(1, len(token_ids), 4):
            engine.add_request("r", prompt, params, output_ids=[token_ids[:cut]])
            rest = []
            while engine.has_unfinished_requests():
                rest += [i for output in engine.step() for i in output.outputs[0].token_ids]
            assert token_ids[:cut] + rest == token_ids
