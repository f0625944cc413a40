"""The demo checkpoint in tests: engines on it, prompts for it, and answers in a form to be
compared.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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


def streamed(engine: LLMEngine, request: Request, **resume: object) -> list[RequestOutput]:
    """The deltas of one request alone."""
    prompt, params = request
    add_request(engine, "r", prompt, params, **resume)
    deltas: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        deltas += engine.step()
    return deltas


def resumed(engine: LLMEngine, request: Request, deltas: list[RequestOutput], cut: int) -> RequestOutput:
    """The whole answer, of which `deltas`, of a token each, were told until each choice had `cut`
    tokens or had ended.
    """
    joined = Accumulator()
    for delta in deltas:
        told = [choice for choice in delta.outputs if choice.first_index < cut]
        joined.add(replace(delta, outputs=told))
    known = [joined.choices[choice] for choice in range(request[1].num_samples)]
    output_ids = [list(choice.token_ids) for choice in known]
    logprobs = [choice.cumulative_logprob or 0.0 for choice in known]
    for delta in streamed(engine, request, output_ids=output_ids, cumulative_logprobs=logprobs):
        joined.add(delta)
    assert joined.last is not None and joined.last.finished
    return joined.last


def check_resumed(
    engine: LLMEngine, plain: LLMEngine, requests: list[Request], essence: Callable[[RequestOutput], object], every: int
) -> None:
    """Each goes on as `plain`, which computes one token a step, answers it, cut off after every so
    many tokens of its choices.
    """
    for request in requests:
        deltas = streamed(plain, request)
        whole = Accumulator()
        for delta in deltas:
            whole.add(delta)
        assert whole.last is not None
        expected = essence(whole.last)
        for cut in range(1, max(len(choice.token_ids) for choice in whole.last.outputs), every):
            assert essence(resumed(engine, request, deltas, cut)) == expected, (request[1], cut)


def tokens_and_text(output: RequestOutput) -> object:
    """What must be the same wherever arithmetic is the same to the last bit but one."""
    return [(c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in output.outputs]


def every_bit(output: RequestOutput) -> object:
    """What must be the same on an exact backend: logprobs to the bit, too."""
    return tokens_and_text(output), [(c.logprobs, c.cumulative_logprob) for c in output.outputs], output.prompt_logprobs
