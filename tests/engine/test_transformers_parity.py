"""The demo checkpoint in float32 answers as transformers' `generate` does: greedy, beams, logprobs, repetition penalty."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig, ModelConfig
from engine.llm_engine import LLMEngine
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor

DEMO = str(Path(__file__).parents[2] / "configs" / "demo")
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def theirs():
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)


@pytest.fixture(scope="module")
def ours():
    config = EngineConfig.create(model=DEMO, dtype="float32", ops_backend="reference", kv_cache_memory_bytes=2**26)
    executor = LocalExecutor(config)
    engine = LLMEngine(config, ModelConfig.load(DEMO), Tokenizer(DEMO), executor)
    engine.start()
    yield engine
    executor.shutdown()


def prompts(tokenizer, count):
    lines = (Path(DEMO) / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    step = len(lines) // count
    return [tokenizer.encode_chat(json.loads(line)["messages"]) for line in lines[:: max(step, 1)][:count]]


def answers(engine, token_ids, params):
    """All at once, so that the rows of a step are of many requests."""
    joined = [Accumulator() for _ in token_ids]
    for number, prompt in enumerate(token_ids):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined[int(output.request_id)].add(output)
    return [total.last for total in joined]


def generate(model, prompt, **options):
    with torch.inference_mode():
        return model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            **options,
        )


def test_greedy_with_logprobs(theirs, ours):
    token_ids = prompts(ours.tokenizer, 100)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, logprobs=3)
    for prompt, answer in zip(token_ids, answers(ours, token_ids, params), strict=True):
        expected = generate(
            theirs, prompt, max_new_tokens=MAX_TOKENS, output_logits=True, return_dict_in_generate=True, num_beams=1
        )
        choice = answer.outputs[0]
        assert choice.token_ids == expected.sequences[0, len(prompt) :].tolist()
        for position, logits in zip(choice.logprobs, expected.logits, strict=True):
            logprobs = torch.log_softmax(logits[0], -1)
            best = torch.topk(logprobs, 3)
            assert list(position)[:3] == best.indices.tolist()
            for token_id, logprob in position.items():
                assert logprob.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-3)


def test_repetition_penalty(theirs, ours):
    token_ids = prompts(ours.tokenizer, 20)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, repetition_penalty=1.3)
    for prompt, answer in zip(token_ids, answers(ours, token_ids, params), strict=True):
        expected = generate(theirs, prompt, max_new_tokens=MAX_TOKENS, repetition_penalty=1.3, num_beams=1)
        assert answer.outputs[0].token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_beams(theirs, ours, width, length_penalty, early_stopping):
    token_ids = prompts(ours.tokenizer, 6)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        beam_width=width,
        n=width,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    for prompt, answer in zip(token_ids, answers(ours, token_ids, params), strict=True):
        expected = generate(
            theirs,
            prompt,
            max_new_tokens=MAX_TOKENS,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        pad = theirs.generation_config.pad_token_id
        lines = [[i for i in row if i != pad] for row in expected[:, len(prompt) :].tolist()]
        assert [choice.token_ids for choice in answer.outputs] == lines
