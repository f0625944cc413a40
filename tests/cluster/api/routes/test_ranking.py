"""POST /v1/rerank and /v1/score, over HTTP."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.pooling import Pooling
from engine.text.judging import INSTRUCTION
from tests.cluster.api.scripted import FINGERPRINT, MODEL, Running, running

JUDGING = Pooling("logprobs", (41, 42))
DOCUMENTS = ["much too long", "a", "four"]


def score_of(document: str) -> float:
    """As the scripted service says."""
    return 1 / (1 + math.exp(len(document) - 3))


@pytest.fixture(scope="module")
def judge() -> Iterator[Running]:
    with running(model={"judging": JUDGING}) as server:
        yield server


@pytest.fixture
def asked(judge: Running) -> Any:
    judge.service.generated.clear()
    return lambda route, **body: httpx.post(f"{judge.url}{route}", json={"model": MODEL} | body, timeout=60)


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_back_by_relevance(judge: Running, asked: Any, route: str) -> None:
    answer = asked(route, query="short?", documents=DOCUMENTS).json()
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(score_of(DOCUMENTS[result["index"]]))
        assert "document" not in result
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert answer["model"] == MODEL and answer["system_fingerprint"] == FINGERPRINT
    assert [request.pooling for request in judge.service.generated] == [JUDGING] * 3


def test_the_first_ones_with_their_texts(asked: Any) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    answer = asked("/v1/rerank", query="short?", documents=documents, top_n=2, return_documents=True).json()
    assert [(result["index"], result["document"]) for result in answer["results"]] == [
        (1, {"text": "a"}),
        (2, {"text": "four"}),
    ]


def test_texts_and_objects_may_be_mixed(asked: Any) -> None:
    for documents in ([{"text": "a"}, "four"], ["four", {"text": "a"}]):
        answer = asked("/v1/rerank", query="short?", documents=documents)
        assert answer.status_code == 200, answer.text


def test_the_prompt_is_the_model_cards(judge: Running, asked: Any) -> None:
    asked("/v1/rerank", query="what?", documents=["that"])
    asked("/v1/score", text_1="what?", text_2="that", instruction="Find it")
    first, second = (request.prompt for request in judge.service.generated)
    assert first == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {INSTRUCTION}\n<Query>: what?\n<Document>: that<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert second == first.replace(INSTRUCTION, "Find it")


def test_scores_of_one_text_or_of_pairs(judge: Running, asked: Any) -> None:
    answer = asked("/v1/score", text_1="q", text_2=DOCUMENTS).json()
    assert answer["object"] == "list"
    assert [item["score"] for item in answer["data"]] == pytest.approx([score_of(text) for text in DOCUMENTS])
    assert [(item["object"], item["index"]) for item in answer["data"]] == [("score", index) for index in range(3)]
    judge.service.generated.clear()
    asked("/score", text_1=["q", "r"], text_2=["a", "b"])
    prompts = [str(request.prompt) for request in judge.service.generated]
    assert ["<Query>: q\n<Document>: a<" in prompts[0], "<Query>: r\n<Document>: b<" in prompts[1]] == [True, True]


@pytest.mark.parametrize(
    ("route", "body", "param", "code"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query", "missing_required_parameter"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "empty_string"),
        ("/v1/rerank", {"query": "q"}, "documents", "missing_required_parameter"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents", "empty_array"),
        ("/v1/rerank", {"query": "q", "documents": "a"}, "documents", "invalid_type"),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 1025}, "documents", "array_above_max_length"),
        ("/v1/rerank", {"query": "q", "documents": ["a", 1]}, "documents[1]", "invalid_type"),
        ("/v1/rerank", {"query": "q", "documents": [{"txt": "a"}]}, "documents[0].text", "missing_required_parameter"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n", "integer_below_min_value"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "return_documents": 1}, "return_documents", "invalid_type"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": []}, "instruction", "invalid_type"),
        ("/v1/score", {"text_1": "a"}, "text_2", "missing_required_parameter"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2", "empty_array"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "invalid_value"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"] * 3}, "text_1", "invalid_value"),
        ("/v1/score", {"text_1": 1, "text_2": "a"}, "text_1", "invalid_type"),
    ],
)
def test_bad_input(judge: Running, asked: Any, route: str, body: dict[str, Any], param: str, code: str) -> None:
    answer = asked(route, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error["message"]
    assert judge.service.generated == []


@pytest.mark.parametrize(
    ("route", "body"),
    [("/v1/rerank", {"query": "q", "documents": ["a"]}), ("/v1/score", {"text_1": "q", "text_2": "a"})],
)
def test_a_model_that_cannot_judge_says_why(server: Running, http: httpx.Client, route: str, body: Any) -> None:
    error = http.post(route, json=body).json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_value")
    assert '"yes" and "no" are not single tokens' in error["message"]
