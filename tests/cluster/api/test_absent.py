"""What is said of a URL at which there is nothing."""

import httpx
import openai
import pytest

from cluster.api.absent import nothing_at
from tests.cluster.api.scripted import MODEL, Running

NOTHING = "There is nothing at this URL"


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/v1/files", "--files-path"),
        ("/v1/files/file-1/content", "--files-path"),
        ("/v1/batches", "--files-path"),
        ("/v1/load_lora_adapter", "--lora-roots"),
        ("/sleep", "--enable-sleep-mode"),
    ],
)
def test_a_route_of_an_option_is_told_with_its_name(http: httpx.Client, path: str, option: str) -> None:
    error = http.post(path).json()["error"]
    assert (error["code"], error["message"]) == ("unknown_url", f"{NOTHING}: the server was started without {option}")


def test_what_else_openais_responses_have_is_told_to_its_client(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for ask, words in (
            (lambda: client.responses.input_items.list("resp_1"), "previous_response_id goes on from it"),
            (lambda: client.responses.cancel("resp_1"), "ends when its connection is closed"),
            (lambda: client.responses.compact(model=MODEL, input="Hello?"), "are not compacted"),
        ):
            with pytest.raises(openai.NotFoundError, match=f"^[^:]+: .* - {NOTHING}: .*{words}") as refused:
                ask()
            assert refused.value.code == "unknown_url"
    assert httpx.get(f"{server.url}/v1/responses/compact").json()["error"]["code"] == "response_not_found"


def test_other_paths_and_those_that_there_are_name_no_option(http: httpx.Client) -> None:
    for path in ("/v1/filesystem", "/v1/images/generations", "/v1", "/sleepy"):
        answer = http.post(path)
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, NOTHING)
    assert nothing_at("/v1/files/a/b/c", ["/v1/files", "/v1/batches"]) == NOTHING
