"""Every kind of request, over HTTP and by handle, all at once, while a process is killed: each
answer is the undisturbed one.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ray.exceptions import RayError
from transformers import AutoModelForCausalLM

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.requests import KINDS, ChaosRequest, make_requests
from cluster.chaos.transcript import Transcript
from engine.text.judging import judging_prompt
from engine.text.tokenizer import Tokenizer
from tests.end_to_end.chaos.processes import GATEWAY, SERVING, find
from tests.end_to_end.conftest import DEMO, Server
from tests.end_to_end.test_replica_lost import engine, wait_until, wait_until_healthy
from tests.end_to_end.test_tokens import post
from tests.engine.support.able import IDS, able_tokenizer

DEADLINE_SECONDS = 300.0
REFUSED = "server_overloaded"
REQUESTS = make_requests(len(KINDS), model="demo", adapter="harbour", max_tokens=100, seed=11, kinds=KINDS)
BOTH_DOORS = 2 * len(KINDS)


@dataclass
class Answered:
    """By one door; `error`: why it broke off."""

    transcript: Transcript
    error: str | None


Told = dict[tuple[str, str], Answered]  # by door and kind


def by_handle(server: Server, request: ChaosRequest) -> Answered:
    """As any Ray job asks: `events` for a stream, `post` for the rest; again if the queue is
    full.
    """
    while (told := asked_by_handle(server, request)).error == REFUSED:
        time.sleep(1.0)
    return told


def asked_by_handle(server: Server, request: ChaosRequest) -> Answered:
    told = Answered(Transcript(), None)
    try:
        body = dict(request.body)
        if request.first is not None:
            first = server.handle.post.remote(request.path, request.first).result(timeout_s=DEADLINE_SECONDS)
            if first.get("error") is not None:
                take(first, told)
                return told
            body["previous_response_id"] = first["id"]
        if not body.get("stream"):
            answer = server.handle.post.remote(request.path, body)
            take(answer.result(timeout_s=DEADLINE_SECONDS), told)
            return told
        for event in server.handle.options(stream=True).events.remote(request.path, body):
            take(event, told)
    except RayError as error:
        told.error = repr(error)
    return told


def take(event: dict[str, Any], told: Answered) -> None:
    error = event.get("error")
    if error is not None:
        told.error = error["code"]
    else:
        told.transcript.take(event)


async def over_http(server: Server) -> list[Stream]:
    """What a full queue refuses is asked again, as clients do."""
    async with ChaosClient(server.url) as client:

        async def ask(request: ChaosRequest) -> Stream:
            while (stream := await client.stream(request)).status == 503:
                await asyncio.sleep(float(stream.retry_after or 1))
            return stream

        return list(await asyncio.gather(*map(ask, REQUESTS)))


def answers(server: Server, disturb: Callable[[], object] = lambda: None) -> Told:
    """Of all requests by both doors; `disturb` has its cause while all kinds run."""
    told: Told = {}
    before = engine(server)["stats"]["num_requests_finished"]
    with ThreadPoolExecutor(BOTH_DOORS) as threads:
        streams = threads.submit(lambda: asyncio.run(over_http(server)))
        handled = {request.kind: threads.submit(by_handle, server, request) for request in REQUESTS}
        wait_until(lambda: has_begun(engine(server)["stats"], before), "the requests do not run")
        disturb()
        assert not streams.done()
        for kind, answer in handled.items():
            told["handle", kind] = answer.result(DEADLINE_SECONDS)
        for stream in streams.result(DEADLINE_SECONDS):
            told["http", stream.request.kind] = Answered(stream.transcript, stream.error)
    return told


def has_begun(stats: dict[str, Any], num_finished: int) -> bool:
    """Whether half of them run or have ended; those of many parts count by these."""
    return stats["num_requests_running"] + stats["num_requests_finished"] - num_finished > len(KINDS)


def digests(told: Told) -> dict[tuple[str, str], str]:
    for which, answer in told.items():
        assert answer.error is None and answer.transcript.is_complete, (which, answer.error)
    return {which: answer.transcript.digest() for which, answer in told.items()}


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> dict[tuple[str, str], str]:
    wait_until_healthy(server)
    return digests(answers(server))


def test_the_handle_answers_as_http_does(undisturbed: dict[tuple[str, str], str]) -> None:
    assert {kind for _, kind in undisturbed} == set(KINDS)
    for kind in KINDS:
        assert undisturbed["handle", kind] == undisturbed["http", kind], kind


def test_a_killed_worker_changes_no_kind(server: Server, undisturbed: dict[tuple[str, str], str]) -> None:
    assert digests(answers(server, lambda: os.kill(find(SERVING)[0], signal.SIGKILL))) == undisturbed


@pytest.mark.long  # beside one killed worker of it
def test_a_killed_engine_replica_changes_no_kind(server: Server, undisturbed: dict[tuple[str, str], str]) -> None:
    pid = engine(server)["pid"]
    assert digests(answers(server, lambda: os.kill(pid, signal.SIGKILL))) == undisturbed
    wait_until_healthy(server)


def test_a_killed_gateway_changes_no_kind_and_breaks_streams_off(
    server: Server, undisturbed: dict[tuple[str, str], str]
) -> None:
    """Whole answers are asked for again, of the next gateway; no stream ends as if it were
    whole.
    """
    (pid,) = find(GATEWAY)
    told = answers(server, lambda: os.kill(pid, signal.SIGKILL))
    broken = {which for which, answer in told.items() if answer.error is not None}
    assert digests({which: told[which] for which in told.keys() - broken}).items() <= undisturbed.items()
    whole = {request.kind for request in REQUESTS if not request.body.get("stream")}
    assert not {kind for door, kind in broken if door == "http"} & whole
    assert broken and not any(told[which].transcript.is_complete for which in broken)
    wait_until_healthy(server)


def test_scores_are_those_of_transformers(server: Server) -> None:
    query, documents = "Which day comes after Monday?", ["Tuesday", "rain " * 40, "seven lanterns"]
    tokenizer, model = Tokenizer(able_tokenizer()), AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.bfloat16)
    expected = []
    for document in documents:
        ids = tokenizer.encode(judging_prompt(query, document))
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1, [IDS["yes"], IDS["no"]]]
        expected.append(float(logits.float().softmax(-1)[0]))
    scored = post(server, "/v1/score", {"text_1": query, "text_2": documents})["data"]
    assert [each["score"] for each in scored] == pytest.approx(expected, abs=0.02)
    ranked = post(server, "/v1/rerank", {"query": query, "documents": documents})["results"]
    scores = {each["index"]: each["relevance_score"] for each in ranked}
    assert [scores[index] for index in range(3)] == [each["score"] for each in scored]
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_reasoning_ends_at_its_budget(server: Server) -> None:
    thinking = {"thinking_token_budget": 9, "chat_template_kwargs": {"enable_thinking": True}, "return_token_ids": True}
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Count from 3 to 9."}],
        "max_tokens": 40,
        "temperature": 0,
        "extra_body": thinking | {"ignore_eos": True},
    }
    choice = server.client().chat.completions.create(**asked).choices[0]
    assert choice.token_ids.index(IDS["</think>"]) == 9 and len(choice.token_ids) == 40
    assert choice.message.reasoning_content and choice.message.content
    reasoning = content = ""
    for chunk in server.client().chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    assert (reasoning, content) == (choice.message.reasoning_content, choice.message.content)
