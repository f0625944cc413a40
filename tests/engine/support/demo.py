"""The demo checkpoint in tests: engines on it, prompts for it, and answers in a form to be
compared.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.outputs import Accumulator, RequestOutput
from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.doubles.thread_executor import ThreadExecutor
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import DEMO, TOKENIZER

Request = tuple[list[int], SamplingParams]


@contextmanager
def demo_engine(**overrides: object) -> Iterator[LLMEngine]:
    """Float32 on the reference backend unless told otherwise, another `model` too; ranks are
    threads, and compute on one.
    """
    arguments = {
        "model": DEMO,
        "dtype": "float32",
        "ops_backend": "reference",
        "kv_cache_memory_bytes": 2**25,
        "num_threads": 1,
    }
    config = EngineConfig.create(**(arguments | overrides))
    executor = LocalExecutor(config) if config.world_size == 1 else ThreadExecutor(config)
    engine = LLMEngine(Parts(config, ModelConfig.load(config.model), TOKENIZER, executor))
    try:
        engine.start()
        yield engine
    finally:
        executor.shutdown()


def held_out_prompts(count: int) -> list[list[int]]:
    """`count` conversations of the held-out set, spread over all of it, as token ids."""
    lines = (Path(DEMO) / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    picked = [lines[index * len(lines) // count] for index in range(count)]
    records = map(json.loads, picked)
    return [TOKENIZER.encode_chat(ChatPrompt(each["messages"], tools=each.get("tools"))) for each in records]


def answers(engine: LLMEngine, requests: list[Request]) -> list[RequestOutput]:
    """All at once, so that the rows of a step are of many requests."""
    joined = [Accumulator() for _ in requests]
    for number, (prompt, params) in enumerate(requests):
        add_request(engine, str(number), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined[int(output.request_id)].add(output)
    return [total.last for total in joined if total.last is not None]


def check_resumed(engine: LLMEngine, requests: list[Request]) -> None:
    """Each with one choice goes on with the same tokens, cut off after every fourth."""
    for prompt, params in requests:
        (whole,) = answers(engine, [(prompt, params)])
        token_ids = whole.outputs[0].token_ids
        for cut in range(1, len(token_ids) if len(whole.outputs) == 1 else 0, 4):
            add_request(engine, "r", prompt, params, output_ids=[token_ids[:cut]])
            rest = []
            while engine.has_unfinished_requests():
                rest += [i for output in engine.step() for i in output.outputs[0].token_ids]
            assert token_ids[:cut] + rest == token_ids


def tokens_and_text(output: RequestOutput) -> object:
    """What must be the same wherever arithmetic is the same to the last bit but one."""
    return [(c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in output.outputs]


def every_bit(output: RequestOutput) -> object:
    """What must be the same on an exact backend: logprobs to the bit, too."""
    return tokens_and_text(output), [(c.logprobs, c.cumulative_logprob) for c in output.outputs], output.prompt_logprobs
