"""Random requests on the C++ kernels, of all features at once: adapters, both kinds of drafts,
penalties, choices, beams, structured outputs, pooling, tiers and sleep, on one engine after the
other. Answers are those given alone, to the bit.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from engine.core.llm_engine import LLMEngine
from engine.outputs import Accumulator, RequestOutput
from engine.pooling import NO_TOKENS, Pooling
from engine.request import Adapter
from engine.sampling_params import SamplingParams
from tests.adapters import demo_shapes, save_adapter
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import demo_engine, every_bit, held_out_prompts
from tests.engine.support.draft_models import truncated
from tests.engine.support.workloads import DEMO, check_engine

NUM_WALKS = 60
KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16", "enable_lora": True, "max_model_len": 280}
PROMPTS = held_out_prompts(24)
FORMS = ({"regex": "[a-z ]*[.]"}, {"json_object": True}, {"json": {"enum": ["one", {"two": [3, None]}]}})
MAYBE: dict[str, tuple[Any, ...]] = {  # one request in five has each
    "top_k": (1, 50),
    "top_p": (0.5, 0.9),
    "min_p": (0.02,),
    "frequency_penalty": (0.5, -0.5),
    "presence_penalty": (0.7,),
    "repetition_penalty": (0.8, 1.3),
    "stop": (["e"], [" a", "th"]),
    "stop_token_ids": ([40, 50, 60],),
    "min_tokens": (1, 9),
    "ignore_eos": (True,),
    "logprobs": (0, 3),
    "prompt_logprobs": (0, 2),
    "bad_words": (["e", "lemon", "12"],),
    "logit_bias": ({40: 5.0, 41: -100.0},),
    "allowed_token_ids": ([*range(30, 300)],),
    "structured_outputs": FORMS,
    "n": (2, 3),
    "best_of": (1, 3),
}
Asked = tuple[list[int], SamplingParams, dict[str, Any]]


def random_params(rng: random.Random) -> SamplingParams:
    options: dict[str, Any] = {"max_tokens": rng.randint(9, 40), "seed": rng.getrandbits(60)}
    if rng.random() < 0.1:
        return SamplingParams(max_tokens=rng.randint(1, 9), beam_width=rng.randint(1, 3), temperature=0.0)
    options["temperature"] = rng.choice((0.0, 0.5, 1.0, 1.5))
    for name, values in MAYBE.items():
        if rng.random() < 0.2:
            options[name] = rng.choice(values)
    if "structured_outputs" in options:
        options.pop("allowed_token_ids", None)
    if "n" in options:
        options.pop("best_of", None)
    return SamplingParams(**options)


def random_request(rng: random.Random, adapters: list[Adapter]) -> Asked:
    prompt = rng.choice(PROMPTS)
    prompt = [*PROMPTS[0][: rng.choice((0, 16, 40))], *prompt[: rng.randint(1, 60)]]
    if rng.random() < 0.3:  # then there is something to look up
        prompt += prompt[-rng.randint(2, 12) :] * rng.randint(2, 6)
    more: dict[str, Any] = {"priority": rng.choice((0, 0, -1)), "cache_salt": rng.choice((None, None, "a"))}
    if rng.random() < 0.4:
        more["adapter"] = rng.choice(adapters)
    if rng.random() < 0.1:
        return prompt[:200], NO_TOKENS, {**more, "pooling": rng.choice((Pooling("mean"), Pooling("logprobs", (3, 9))))}
    return prompt[:200], random_params(rng), more


def random_engine(rng: random.Random, draft: str, folder: Path) -> dict[str, Any]:
    drafts = (None, {"prompt_lookup_min": 1}, {"model": draft}, {"model": DEMO, "num_speculative_tokens": 2})
    options = {
        "num_gpu_blocks_override": rng.choice((19, 24, 60)),
        "swap_space": rng.choice((0.0, 0.05)),
        "max_num_seqs": rng.choice((3, 8, 32)),
        "max_num_batched_tokens": rng.choice((33, 2048)),
        "long_prefill_token_threshold": rng.choice((0, 1, 7)),
        "enable_prefix_caching": rng.random() < 0.7,
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "max_loras": rng.choice((1, 2)),
        "speculative_config": rng.choice(drafts),
        "enforce_eager": rng.random() < 0.3,
    }
    has_model = "model" in (options["speculative_config"] or {})
    if options["enable_prefix_caching"] and options["swap_space"] and not has_model:
        options["kv_offloading_path"] = str(folder)
    return options


def disturb(engine: LLMEngine, rng: random.Random, told: list[RequestOutput]) -> None:
    """Sleep, and wake up, with all that is in the engine."""
    engine.is_frozen = True
    while not engine.is_quiet:
        told += engine.step()
    engine.epochs.sleep(rng.choice((1, 2)))
    engine.epochs.wake_up()
    engine.is_frozen = False


class Walk:
    """Of requests that go on, one engine after the other."""

    def __init__(self, rng: random.Random, asked: list[Asked]) -> None:
        self._rng, self._asked = rng, asked
        self._waiting = list(range(len(asked)))
        self._begun: list[int] = []
        self.answers = [Accumulator() for _ in asked]

    def _begin(self, engine: LLMEngine, number: int) -> None:
        prompt, params, more = self._asked[number]
        had = self.answers[number].choices
        output_ids = [had[choice].token_ids if choice in had else [] for choice in range(params.num_samples)]
        scores = [
            (had[choice].cumulative_logprob or 0.0) if choice in had else 0.0 for choice in range(len(output_ids))
        ]
        resume = {"output_ids": output_ids, "cumulative_logprobs": scores} if any(output_ids) else {}
        add_request(engine, str(number), prompt, params, **more, **resume)

    def run(self, engine: LLMEngine, most_steps: int) -> None:
        self._begun = [number for number in self._begun if not self._has_ended(number)]
        for number in self._begun:
            self._begin(engine, number)
        while most_steps and (self._waiting or engine.has_unfinished_requests()):
            most_steps -= 1
            while self._waiting and self._rng.random() < 0.4:
                self._begun.append(self._waiting.pop())
                self._begin(engine, self._begun[-1])
            told: list[RequestOutput] = []
            if self._rng.random() < 0.02:
                disturb(engine, self._rng, told)
            for output in told + engine.step():
                self.answers[int(output.request_id)].add(output)
            check_engine(engine)
        for number in self._begun:
            engine.abort_request(str(number))
        while engine.has_unfinished_requests():
            engine.step()
        check_engine(engine)
        assert engine.scheduler.blocks.device.num_free == engine.scheduler.blocks.device.num_usable
        assert engine.scheduler.queues.num_places == engine.scheduler.queues.num_places_wanted == 0

    def _has_ended(self, number: int) -> bool:
        last = self.answers[number].last
        return last is not None and last.finished


def bits(answer: Accumulator) -> object:
    """Where a choice finds no token left, the others end where they are."""
    last = answer.last
    assert last is not None and last.finished
    if last.error is not None:
        return last.error
    return every_bit(last), [choice.pooled for choice in last.outputs]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return truncated(tmp_path_factory.mktemp("drafts") / "truncated")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), demo_shapes()
    some = save_adapter(folder / "some", shapes, rank=3, targets=("q_proj", "down_proj"), seed=2)
    return [save_adapter(folder / "whole", shapes, rank=8, seed=1), some]


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(3, NUM_WALKS)]


@pytest.mark.parametrize("seed", [0, 1, 2, *LONG])
def test_answers_are_those_given_alone(seed: int, draft: str, adapters: list[Adapter], tmp_path: Path) -> None:
    rng = random.Random(seed)
    asked = [random_request(rng, adapters) for _ in range(rng.randint(4, 12))]
    alone = []
    with demo_engine(**KERNELS, enable_prefix_caching=False, enforce_eager=True) as engine:
        for each in asked:
            single = Walk(random.Random(), [each])
            single.run(engine, -1)
            alone.append(bits(single.answers[0]))
    walk = Walk(rng, asked)
    for most_steps in (rng.randint(1, 60), -1):
        with demo_engine(**KERNELS, **random_engine(rng, draft, tmp_path)) as engine:
            walk.run(engine, most_steps)
    assert [bits(answer) for answer in walk.answers] == alone
