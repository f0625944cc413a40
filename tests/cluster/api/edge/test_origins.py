"""What a browser is told of whose pages may ask."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.api.edge.origins import check_own_page
from cluster.api.errors import ApiError
from cluster.api.keys.key_ring import KeyRing
from cluster.launch.app import build_app
from engine.errors import InvalidConfig
from tests.cluster.api.scripted import running

PAGE = "https://chat.example.com"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        running(api_keys=KeyRing(["key"]), allowed_origins=(PAGE,)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def test_a_browser_asks_without_a_key(http: httpx.Client) -> None:
    answer = http.options("/v1/chat/completions", headers={"origin": PAGE, **PREFLIGHT})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


HOST = b"127.0.0.1:8000"
OWN = [(b"host", HOST), (b"origin", b"http://" + HOST)]


def scope_of(headers: list[tuple[bytes, bytes]], client: str = "127.0.0.1") -> dict[str, Any]:
    return {"type": "http", "headers": headers, "client": (client, 40000)}


def test_the_servers_own_page_on_its_machine_may_do_more() -> None:
    check_own_page(scope_of(OWN))
    check_own_page(scope_of([(b"host", b"localhost"), (b"origin", b"https://LOCALHOST")], "::1"))


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([(b"host", HOST)], "127.0.0.1"),
        ([(b"host", HOST), (b"origin", b"null")], "127.0.0.1"),
        ([(b"host", HOST), (b"origin", b"http://127.0.0.1:3000")], "127.0.0.1"),
        ([(b"host", HOST), (b"origin", b"http://evil.example")], "127.0.0.1"),
        ([(b"host", HOST), (b"origin", b"http://" + HOST + b".evil.example")], "127.0.0.1"),
        ([*OWN, (b"origin", b"http://evil.example")], "127.0.0.1"),
        ([(b"origin", b"http://")], "127.0.0.1"),
        ([*OWN, (b"x-forwarded-for", b"127.0.0.1")], "127.0.0.1"),
        (OWN, "192.0.2.7"),
    ],
)
def test_others_may_not(headers: list[tuple[bytes, bytes]], client: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_own_page(scope_of(headers, client))
    assert (refused.value.status, refused.value.code) == (403, "page_needed")


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example.com", f"{PAGE}.evil.example", "null"])
def test_other_pages_may_not(http: httpx.Client, origin: str) -> None:
    refused = http.options("/v1/chat/completions", headers={"origin": origin, **PREFLIGHT})
    assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers
    answer = http.get("/v1/models", headers={"origin": origin, "authorization": "Bearer key"})
    assert "access-control-allow-origin" not in answer.headers, "so the browser keeps the answer to itself"


@pytest.mark.parametrize(("authorization", "status"), [("Bearer key", 200), ("Bearer wrong", 401)])
def test_a_page_may_read_answers_and_errors(http: httpx.Client, authorization: str, status: int) -> None:
    answer = http.get("/v1/models", headers={"origin": PAGE, "authorization": authorization})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
    assert "x-ratelimit-remaining-tokens" in answer.headers["access-control-expose-headers"]


def test_none_by_default() -> None:
    with running() as server:
        answer = httpx.get(f"{server.url}/v1/models", headers={"origin": PAGE})
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
        assert httpx.options(f"{server.url}/v1/models", headers={"origin": PAGE, **PREFLIGHT}).status_code == 405


@pytest.mark.parametrize("origin", ["", "chat.example.com", "https://a/b", "https://*.example.com", "ftp://a", "null"])
def test_origins_refused(origin: str) -> None:
    with pytest.raises(InvalidConfig, match=r"allowed_origins: .* is neither"):
        build_app({"engine": {"model": "configs/demo"}, "allowed_origins": [origin]})
