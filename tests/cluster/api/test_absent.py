"""What is said of a URL at which there is nothing."""

import httpx
import pytest

from cluster.api.absent import nothing_at

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


def test_other_paths_and_those_that_there_are_name_no_option(http: httpx.Client) -> None:
    for path in ("/v1/filesystem", "/v1/images/generations", "/v1", "/sleepy"):
        answer = http.post(path)
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, NOTHING)
    assert nothing_at("/v1/files/a/b/c", ["/v1/files", "/v1/batches"]) == NOTHING
