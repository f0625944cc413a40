"""Rows that are not numbers, and requests that a real worker cannot compute: they end alone, on
either backend.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core.llm_engine import LLMEngine
from engine.errors import STEP_FAILED
from engine.outputs import Accumulator, RequestOutput
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import answers, demo_engine, every_bit, tokens_and_text
from tests.engine.support.workloads import DEMO

POISON = 300  # a token id that only the poisoned prompt has
BACKENDS = ["reference", "cpu"]


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo checkpoint with a head of its own, so that a token's embedding is in no other row's
    logits.
    """
    folder = tmp_path_factory.mktemp("untied")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copyfile(Path(DEMO) / name, folder / name)
    config = json.loads((Path(DEMO) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = load_file(Path(DEMO) / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors")
    return str(folder)


@contextmanager
def poisoned_engine(model: str, backend: str) -> Iterator[LLMEngine]:
    """With NaN for the poison's embedding, and a cache so small that blocks change hands all the
    time.
    """
    with demo_engine(model=model, ops_backend=backend, num_gpu_blocks_override=24, max_model_len=128) as engine:
        ops = engine.executor._worker._shard.model.ops
        whole = ops.embedding

        def embedding(ids: torch.Tensor, *others: Any) -> torch.Tensor:
            return whole(ids, *others).masked_fill((ids == POISON)[:, None], torch.nan)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "embedding", embedding)
            yield engine


def healed(engine: LLMEngine) -> Any:
    """The embedding without the poison."""
    return engine.executor._worker._shard.model.ops.embedding.__closure__[0].cell_contents


def requests(count: int) -> list[tuple[list[int], SamplingParams]]:
    prompts = [[20 + (7 * n + k) % 200 for k in range(5 + 9 * n % 60)] for n in range(count)]
    never = {POISON: -100.0}  # they could draw it by themselves
    return [
        (prompt, SamplingParams(seed=n, max_tokens=12, ignore_eos=True, logit_bias=never))
        for n, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_of_nan_ends_its_request_and_touches_no_other(untied: str, backend: str) -> None:
    good = requests(12)
    poisons = [([5, 6, POISON, *range(30, 70)], SamplingParams(max_tokens=12))] * 6
    with demo_engine(model=untied, ops_backend=backend, num_gpu_blocks_override=24, max_model_len=128) as engine:
        expected = [every_bit(answer) for answer in answers(engine, good)]
    with poisoned_engine(untied, backend) as engine:
        mixed = [request for pair in zip(good, poisons * 2, strict=True) for request in pair]
        told = answers(engine, mixed)
        assert [every_bit(answer) for answer in told[::2]] == expected
        assert {answer.error for answer in told[1::2]} == {
            "the model gave no finite probabilities for this request's next token"
        }
        assert engine.stats().num_recoveries == engine.stats().num_failed_steps == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_aborted", [False, True], ids=["failed", "aborted in flight"])
def test_what_was_not_finite_once_is_not_found_in_the_cache(untied: str, backend: str, is_aborted: bool) -> None:
    """A fault of the moment: the same prompt is computed again, and rightly."""
    prompt = [*range(20, 60), POISON, *range(60, 90)]
    request = (prompt, SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True))
    with demo_engine(model=untied, ops_backend=backend) as engine:
        (expected,) = answers(engine, [request])
        assert engine.scheduler.blocks.num_prefix_hits == 0
    with poisoned_engine(untied, backend) as engine:
        if is_aborted:
            add_request(engine, "gone", *request)
            assert engine._submit_next()
            engine.abort_request("gone")
            engine.step()
        else:
            (failed,) = answers(engine, [request])
            assert "no finite probabilities" in str(failed.error)
        engine.executor._worker._shard.model.ops.embedding = healed(engine)
        (again,) = answers(engine, [request])
        assert every_bit(again) == every_bit(expected) and again.num_cached_tokens == 0
        (hit,) = answers(engine, [request])
        assert hit.num_cached_tokens == 64 and tokens_and_text(hit) == tokens_and_text(expected), (
            "what is right is kept"
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_steps_later", [0, 1, 2])
@pytest.mark.parametrize(
    "fields", [{}, {"n": 3, "temperature": 1.0, "seed": 1}, {"beam_width": 2}], ids=["one", "three", "beams"]
)
def test_who_found_blocks_that_were_not_finite_is_computed_again(
    untied: str, backend: str, num_steps_later: int, fields: dict[str, Any]
) -> None:
    """A fault of the moment in blocks that two requests share: the one that wrote them ends, the
    one that only read them gets its tokens.
    """
    shared = [*range(20, 60), POISON, *range(60, 90)]
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 6} | fields)
    writer = ([*shared, 91, 92], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    reader = ([*shared, 93], params)
    with demo_engine(model=untied, ops_backend=backend) as engine:
        (expected,) = answers(engine, [reader])
    with poisoned_engine(untied, backend) as engine:
        add_request(engine, "writer", *writer)
        for _ in range(num_steps_later):
            assert engine._submit_next()
        add_request(engine, "reader", *reader)
        assert engine._submit_next()
        engine._in_flight[-1][1].result()
        engine.executor._worker._shard.model.ops.embedding = healed(engine)
        joined: dict[str, Accumulator] = {"writer": Accumulator(), "reader": Accumulator()}
        while engine.has_unfinished_requests():
            for output in engine.step():
                joined[output.request_id].add(output)
        told = {name: total.last for name, total in joined.items() if total.last is not None}
        assert "no finite probabilities" in str(told["writer"].error)
        assert told["reader"].error is None
        assert tokens_and_text(told["reader"]) == tokens_and_text(expected)
        assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks


def test_what_makes_the_worker_raise_ends_alone(untied: str) -> None:
    with demo_engine(model=untied) as engine:
        good = requests(8)
        expected = [every_bit(answer) for answer in answers(engine, good)]
        ops = engine.executor._worker._shard.model.ops
        whole = ops.embedding

        def embedding(ids: torch.Tensor, *others: Any) -> torch.Tensor:
            if (ids == POISON).any():
                raise OverflowError("poison")
            return whole(ids, *others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "embedding", embedding)
            told: list[RequestOutput] = answers(engine, [*good, ([1, POISON], SamplingParams())])
        assert [every_bit(answer) for answer in told[:-1]] == expected
        assert (told[-1].error, told[-1].error_code) == (
            "each step with this request failed (OverflowError: poison)",
            STEP_FAILED,
        )
        assert engine.stats().num_recoveries == 0 and engine.stats().num_failed_steps == 3
