"""Quantized weights on the demo checkpoint: the same bits sharded, in company and in chunks; what
the report says; answers.
"""

import json
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams
from engine.worker.worker import Worker
from tests.engine.exactness.test_demo_exactness import KINDS
from tests.engine.support.demo import answers, demo_engine, every_bit, held_out_prompts
from tests.engine.support.workloads import DEMO, TOKENIZER

KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
VARIANTS = {
    "chunks of 7": {"long_prefill_token_threshold": 7, "enable_prefix_caching": False},
    "TP=2": {"tensor_parallel_size": 2},
    "TP=4": {"tensor_parallel_size": 4},
    "TP=2 × PP=2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
quantizations = pytest.mark.parametrize("quantization", ["int8", "int4"])


@quantizations
def test_tokens_and_logprobs_have_the_same_bits_however_they_are_computed(quantization: str) -> None:
    prompts = held_out_prompts(6)
    requests = [(p, SamplingParams(**KINDS[n % len(KINDS)], seed=n, max_tokens=8)) for n, p in enumerate(prompts)]
    with demo_engine(**KERNELS, quantization=quantization) as engine:
        alone = [every_bit(answers(engine, [request])[0]) for request in requests]
    for name, variant in VARIANTS.items():
        with demo_engine(**KERNELS, quantization=quantization, **variant) as engine:
            assert [every_bit(output) for output in answers(engine, requests)] == alone, name


@quantizations
def test_held_out_questions_are_answered(quantization: str) -> None:
    records = [
        json.loads(line) for line in (Path(DEMO) / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[::13]
    ]
    params = SamplingParams(temperature=0.0, max_tokens=128)
    requests = [(TOKENIZER.encode_chat(ChatPrompt(record["messages"])), params) for record in records]
    with demo_engine(**KERNELS, quantization=quantization) as engine:
        given = [output.outputs[0].text for output in answers(engine, requests)]
    right = sum(text == record["answer"] for text, record in zip(given, records, strict=True))
    assert right >= 0.93 * len(records), f"{right} of {len(records)}"


def test_the_report_says_how_weights_are_stored() -> None:
    config = EngineConfig.create(model=DEMO, device="cpu", dtype="bfloat16", quantization="int4")
    assert ", bfloat16 with int4 weights, " in Worker(config).report


def test_the_reference_answers_what_the_kernels_do() -> None:
    requests = [(prompt, SamplingParams(temperature=0.0, max_tokens=8)) for prompt in held_out_prompts(6)]
    texts = []
    for backend in ("reference", "cpu"):
        with demo_engine(ops_backend=backend, dtype="float32", quantization="int4") as engine:
            texts.append([output.outputs[0].token_ids for output in answers(engine, requests)])
    assert texts[0] == texts[1]


def test_fp8_answers_on_the_reference() -> None:
    prompt = TOKENIZER.encode_chat(ChatPrompt([{"role": "user", "content": "What is 17 + 25?"}]))
    with demo_engine(ops_backend="reference", dtype="bfloat16", quantization="fp8") as engine:
        (answer,) = answers(engine, [(prompt, SamplingParams(temperature=0.0, max_tokens=8))])
    assert answer.outputs[0].text == "42"
