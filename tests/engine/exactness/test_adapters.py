"""Requests with adapters: transformers' logits of the merged weights, and the same bits whatever is
beside them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.request import Adapter
from engine.sampling_params import SamplingParams
from tests.adapters import demo_shapes, merged, save_adapter
from tests.engine.exactness.logits import Row, spied_engine
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import held_out_prompts
from tests.engine.support.workloads import DEMO
from tests.parallel.published.packers import awq
from tests.parallel.published.publish import WEIGHTS, pack, write

MAX_TOKENS = 8
Kept = dict[Row, torch.Tensor]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter | None]:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = demo_shapes()
    rs = {"use_rslora": True}
    return [
        save_adapter(folder / "whole", shapes, rank=8, seed=1),
        None,
        save_adapter(folder / "attention", shapes, rank=3, targets=("q_proj", "v_proj"), seed=2, changes=rs),
        save_adapter(folder / "mlp", shapes, rank=16, targets=("up_proj", "down_proj"), seed=3),
    ]


def run(
    prompts: list[list[int]],
    adapters: list[Adapter | None],
    only: int | None = None,
    *,
    model: str = DEMO,
    **config: object,
) -> tuple[list[list[int]], Kept]:
    """Prompt n with the adapter n % 4: each one's tokens, and the logits of every row."""
    tokens: dict[int, list[int]] = {}
    arguments = {"dtype": "float32", "enable_lora": True, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    with spied_engine(model, **(arguments | config)) as (engine, spy):
        for n, prompt in enumerate(prompts):
            if only in (None, n):
                params = SamplingParams(temperature=0.0, seed=n, max_tokens=MAX_TOKENS, ignore_eos=True)
                add_request(engine, str(n), prompt, params, adapter=adapters[n % len(adapters)])
        while engine.has_unfinished_requests():
            for output in engine.step():
                assert output.error is None, output.error
                for choice in output.outputs:
                    tokens.setdefault(int(output.request_id), []).extend(choice.token_ids)
    return [tokens.get(n, []) for n in range(len(prompts))], spy.rows


def assert_same_bits(rows: Kept, expected: Kept) -> None:
    shared = rows.keys() & expected.keys()
    assert len(shared) >= MAX_TOKENS
    for key in shared:
        assert torch.equal(rows[key].view(torch.int32), expected[key].view(torch.int32)), key


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, torch.Tensor]]:
    """The demo as AWQ writes it, and the numbers that its codes stand for."""
    folder, form = tmp_path_factory.mktemp("published") / "demo", awq(64)
    shutil.copytree(DEMO, folder)
    stored, meant = pack(load_file(Path(DEMO) / WEIGHTS), form)
    write(folder, stored, json.loads((folder / "config.json").read_text()), form)
    return str(folder), meant


@pytest.mark.parametrize("is_published", [False, True])
def test_logits_are_those_of_the_merged_weights(
    adapters: list[Adapter | None],
    published: tuple[str, dict[str, torch.Tensor]],
    is_published: bool,
    tmp_path: Path,
) -> None:
    prompts = held_out_prompts(4)
    model, meant = published if is_published else (DEMO, {})
    tokens, rows = run(prompts, adapters, model=model)
    for n, adapter in enumerate(adapters):
        folder = tmp_path / str(n)
        shutil.copytree(DEMO, folder)
        weights = load_file(Path(DEMO) / WEIGHTS) | meant
        if adapter is not None:
            weights = merged(weights, Path(adapter.folder))
        (folder / WEIGHTS).unlink()
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompts[n] + tokens[n]])).logits[0]
        for (seed, _, position), row in rows.items():
            if seed == n and position < len(prompts[n]) + MAX_TOKENS:
                torch.testing.assert_close(row, logits[position - 1], rtol=1e-3, atol=1e-3)
    answers = [run([prompts[0]], [adapter], model=model)[0] for adapter in adapters]
    assert len({str(answer) for answer in answers}) > 2, "these adapters change too little to show anything"


@pytest.mark.parametrize("form", [None, "int8", "int4", "published"])
def test_bits_do_not_depend_on_what_is_beside_them(
    adapters: list[Adapter | None], published: tuple[str, dict[str, torch.Tensor]], form: str | None
) -> None:
    prompts = held_out_prompts(8)
    config: dict[str, Any] = {"dtype": "bfloat16"}
    config |= {"model": published[0]} if form == "published" else {"quantization": form}
    expected = run(prompts, adapters, **config)[1]
    for n in (0, 1, 2):
        assert_same_bits(run(prompts, adapters, only=n, **config)[1], expected)
    for sharding in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        assert_same_bits(run(prompts, adapters, **config, **sharding)[1], expected)
    chunked = {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 7}
    assert_same_bits(run(prompts, adapters, **config, **chunked)[1], expected)
    assert_same_bits(run(prompts, adapters, **config, enforce_eager=True)[1], expected)  # without tapes


@pytest.mark.parametrize("rank", [64, 256])
def test_high_ranks_have_the_same_bits_on_any_number_of_ranks(rank: int, tmp_path: Path) -> None:
    adapters = [save_adapter(tmp_path / "high", demo_shapes(), rank=rank, size=rank**0.5, seed=rank), None]
    prompts = held_out_prompts(2)
    config: dict[str, Any] = {"dtype": "bfloat16", "max_lora_rank": rank}
    tokens, expected = run(prompts, adapters, **config)
    assert tokens[0] != run(prompts, [None], **config)[0][0], "this adapter changes too little to show anything"
    for size in (2, 4):
        assert_same_bits(run(prompts, adapters, **config, tensor_parallel_size=size)[1], expected)


def test_what_is_cached_is_of_one_adapter(adapters: list[Adapter | None]) -> None:
    (prompt,) = held_out_prompts(1)
    prompt = prompt * 4
    expected = [run([prompt], [adapter])[0][0] for adapter in adapters]
    assert len({str(answer) for answer in expected}) > 2, "these adapters change too little to show anything"
    tokens, _ = run([prompt] * 8, adapters, max_num_seqs=2, max_loras=1)
    assert tokens == expected + expected
