"""Embeddings by the real `openai` client and by the handle, also while processes are killed."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.end_to_end.chaos.processes import SERVING, find
from tests.end_to_end.conftest import DEMO, Server
from tests.end_to_end.test_replica_lost import engine, wait_until, wait_until_healthy

DEADLINE_SECONDS = 300.0
TEXTS = ["What day comes after Monday?", "Count from 3 to 9.", "a " * 700]
# More than a second's worth, so that it can be interrupted.
MANY = [f"{number} " + "rain harbour seven lantern " * 60 for number in range(40)]


def test_they_are_those_of_transformers(server: Server) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(DEMO), AutoModel.from_pretrained(DEMO, dtype=torch.bfloat16)
    answer = server.client().embeddings.create(model="demo", input=TEXTS)
    assert answer.usage.prompt_tokens == sum(len(tokenizer(text).input_ids) for text in TEXTS)
    for text, found in zip(TEXTS, answer.data, strict=True):
        with torch.inference_mode():
            state = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
        expected = torch.nn.functional.normalize(state.float(), dim=0)
        assert float(torch.tensor(found.embedding) @ expected) > 0.999


def test_every_form_has_the_same_bits(server: Server) -> None:
    client = server.client()
    together = client.embeddings.create(model="demo", input=TEXTS)
    for index, text in enumerate(TEXTS):
        alone = client.embeddings.create(model="demo", input=text, encoding_format="float")
        assert alone.data[0].embedding == together.data[index].embedding
    few = client.embeddings.create(model="demo", input=TEXTS[0], dimensions=16).data[0].embedding
    first = np.array(together.data[0].embedding[:16])
    np.testing.assert_allclose(few, first / np.linalg.norm(first), atol=1e-6)


def test_the_handle_answers_the_same(server: Server) -> None:
    answer = server.handle.post.remote("/v1/embeddings", {"input": TEXTS}).result()
    expected = server.client().embeddings.create(model="demo", input=TEXTS, encoding_format="float")
    assert [item["embedding"] for item in answer["data"]] == [item.embedding for item in expected.data]
    wrong = server.handle.post.remote("/v1/embeddings", {"input": TEXTS, "dimensions": 99_999}).result()
    assert wrong["error"]["param"] == "dimensions" and "dimensions=99999 exceeds" in wrong["error"]["message"]


def test_a_text_too_long_is_named(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().embeddings.create(model="demo", input=["short", "word " * 5000])
    assert (refused.value.param, refused.value.code) == ("input[1]", "context_length_exceeded")


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> Any:
    wait_until_healthy(server)
    return [item.embedding for item in server.client().embeddings.create(model="demo", input=MANY).data]


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_a_killed_worker_changes_nothing(server: Server, undisturbed: Any) -> None:
    assert answered(server, lambda: os.kill(find(SERVING)[0], signal.SIGKILL)) == undisturbed


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_a_killed_engine_replica_changes_nothing(server: Server, undisturbed: Any) -> None:
    pid = engine(server)["pid"]
    assert answered(server, lambda: os.kill(pid, signal.SIGKILL)) == undisturbed
    wait_until_healthy(server)


def answered(server: Server, disturb: Callable[[], object]) -> Any:
    """The answer to MANY, of which some were being computed at `disturb`. Their prefixes are not
    cached: a salt of their own.
    """
    salt = os.urandom(8).hex()
    with ThreadPoolExecutor(1) as threads:
        client = server.client(timeout=DEADLINE_SECONDS)
        asking = threads.submit(client.embeddings.create, model="demo", input=MANY, extra_body={"cache_salt": salt})
        wait_until(lambda: engine(server)["stats"]["num_requests_running"] > 0, "nothing runs")
        disturb()
        assert not asking.done()
        return [item.embedding for item in asking.result(DEADLINE_SECONDS).data]
