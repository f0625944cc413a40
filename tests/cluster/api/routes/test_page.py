"""The page, as a browser gets it."""

from collections.abc import Iterator

import httpx
import pytest

from cluster.api.keys.key_ring import KeyRing
from cluster.page.files import INDEX, read_files
from tests.cluster.api.scripted import running

FILES = read_files()
PATHS = {"/": INDEX} | {f"/page/{path}": path for path in FILES}


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    """Where a key is needed, and one host is answered to."""
    with (
        running(api_keys=KeyRing(["sk-one"]), allowed_hosts=("127.0.0.1",)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_each_file_comes_without_a_key_and_with_a_strict_policy(guarded: httpx.Client, path: str) -> None:
    answer, file = guarded.get(path), FILES[PATHS[path]]
    assert (answer.status_code, answer.content) == (200, file.body)
    assert (answer.headers["content-type"], answer.headers["etag"]) == (file.media_type, file.etag)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = guarded.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(file.body))


@pytest.mark.parametrize("known", ["{}", "W/{}", '"other", {}', "*"])
def test_what_a_browser_has_already_is_not_sent_again(guarded: httpx.Client, known: str) -> None:
    etag = FILES[INDEX].etag
    answer = guarded.get("/", headers={"if-none-match": known.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert answer.headers["cache-control"] == "no-cache" and "content-security-policy" in answer.headers
    assert guarded.get("/", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../files.py", "/page/%2e%2e/files.py", "/page//etc/passwd", "/page/x%00"]
)
def test_there_is_nothing_else(guarded: httpx.Client, path: str) -> None:
    answer = guarded.get(path)
    assert answer.status_code in (401, 404) and "sk-one" not in answer.text
    if answer.status_code == 404:
        assert answer.json()["error"]["code"] == "unknown_url"


def test_a_page_of_another_name_gets_nothing(guarded: httpx.Client) -> None:
    assert guarded.get("/", headers={"host": "evil.example"}).status_code == 403


def test_only_reading_is_possible(guarded: httpx.Client) -> None:
    assert guarded.post("/", headers={"authorization": "Bearer sk-one"}).status_code == 405
    assert guarded.post("/page/main.js", headers={"authorization": "Bearer sk-one"}).status_code == 405


def test_what_the_page_shows_needs_a_key(guarded: httpx.Client) -> None:
    assert guarded.get("/debug/view").status_code == 401
    assert guarded.get("/debug/view", headers={"authorization": "Bearer sk-one"}).status_code == 200
