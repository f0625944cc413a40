"""Reasoning ends at its budget, whoever is lost: two engines, their channel, the gateway, the HTTP
API and the `openai` client, with a tokenizer that takes two of the demo's tokens for the marks.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from cluster.owner import this_process
from engine.config import EngineConfig
from tests.cluster.gateway.test_resume import CutGateway, client_of
from tests.cluster.replica.test_deployment import CONFIG, Replica, Replicas
from tests.engine.text.tokenizers import write_reasoning_tokenizer

MESSAGES = [{"role": "user", "content": "Count from 3 to 30."}]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "choices": {"n": 3, "seed": 6},
    "penalties": {"seed": 8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "the mark is banned": {"seed": 9, "logit_bias": {"761": -100}, "extra_body": {"bad_words": ["</think>"]}},
}


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[list[Replica]]:
    write_reasoning_tokenizer(tmp_path)
    config = EngineConfig.create(**CONFIG.model_dump() | {"tokenizer": str(tmp_path)})
    replicas = [Replica.__new__(Replica) for _ in range(2)]
    for replica in replicas:
        await replica.__init__(config, this_process())
    yield replicas
    for replica in replicas:
        await replica.stop()


async def test_reasoning_ends_at_its_budget(replicas: list[Replica]) -> None:
    gateway = CutGateway(Replicas(replicas))
    await gateway.start("127.0.0.1")
    async with asyncio.timeout(120), client_of(gateway, await replicas[0].model_info()) as client:
        for kind, options in KINDS.items():
            for budget in (0, 1, 6):
                gateway.cuts = []
                undisturbed = await ask(client, budget, **options)
                for reasoning, _, tokens in undisturbed:
                    assert tokens.index("</think>") == budget, (kind, budget)
                    assert reasoning == "".join(tokens[:budget]).strip("\n")
                for cut in {max(budget, 1), budget + 1, budget + 2}:
                    gateway.cuts, gateway.num_cut = [cut], 0
                    assert await ask(client, budget, stream=True, **options) == undisturbed, (kind, budget, cut)
                    assert gateway.num_cut == 1
    await gateway.close()


async def test_an_answer_with_a_form_has_no_reasoning_to_end(replicas: list[Replica]) -> None:
    gateway = CutGateway(Replicas(replicas))
    await gateway.start("127.0.0.1")
    async with asyncio.timeout(60), client_of(gateway, await replicas[0].model_info()) as client:
        form = {"structured_outputs": {"choice": ["yes", "no"]}, "thinking_token_budget": 0}
        answer = await client.chat.completions.create(model="demo", messages=MESSAGES, extra_body=form)
    assert answer.choices[0].message.content in ("yes", "no")
    await gateway.close()


async def ask(
    client: openai.AsyncOpenAI, budget: int, *, stream: bool = False, **options: Any
) -> list[tuple[str, str, list[str]]]:
    """Of each choice the reasoning, the content and the tokens."""
    body = {"thinking_token_budget": budget, "ignore_eos": True} | options.pop("extra_body", {})
    answer: Any = await client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=20, logprobs=True, stream=stream, extra_body=body, **options
    )
    wholes: dict[int, tuple[list[str], list[str], list[str]]] = {}
    for chunk in [chunk async for chunk in answer] if stream else [answer]:
        for choice in chunk.choices:
            told = choice.delta if stream else choice.message
            reasoning, content, tokens = wholes.setdefault(choice.index, ([], [], []))
            reasoning.append(getattr(told, "reasoning_content", None) or "")
            content.append(told.content or "")
            tokens += [each.token for each in (choice.logprobs and choice.logprobs.content) or ()]
    return [
        ("".join(reasoning), "".join(content), tokens) for _, (reasoning, content, tokens) in sorted(wholes.items())
    ]
