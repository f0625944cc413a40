"""One server for most tests, and clients of it: making a client takes longer than most of what it
is used for.
"""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.cluster.api.scripted import Running, running


@pytest.fixture(scope="session")
def session_server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def session_client(session_server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{session_server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def session_http(session_server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=session_server.url, timeout=60) as client:
        yield client


@pytest.fixture
def server(session_server: Running) -> Running:
    session_server.service.generated.clear()
    session_server.service.scripts.clear()
    session_server.service.problems.clear()
    session_server.service.asked_room.clear()
    session_server.service.is_full = False
    session_server.service.queue_seconds = 0.0
    return session_server


@pytest.fixture
def client(server: Running, session_client: openai.OpenAI) -> openai.OpenAI:
    return session_client


@pytest.fixture
def http(server: Running, session_http: httpx.Client) -> httpx.Client:
    return session_http
