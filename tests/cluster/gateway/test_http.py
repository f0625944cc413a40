"""Which host names a gateway answers to, by where its proxy listens."""

import httpx
import pytest
import uvicorn.protocols.http.auto

from cluster.api.front.gateway_connection import GatewayConnection
from cluster.api.models.model import Model, Models
from cluster.api.options import HttpOptions
from cluster.gateway import http as module
from cluster.gateway.http import Http
from tests.cluster.api.scripted import MODEL, ScriptedService


@pytest.mark.parametrize(
    ("listens", "allowed", "status"),
    [
        ("127.0.0.1", None, 403),
        ("0.0.0.0", None, 200),
        ("", None, 200),
        ("127.0.0.1", ("evil.example",), 200),
        ("0.0.0.0", ("good.example",), 403),
    ],
)
async def test_on_loopback_a_name_of_a_web_page_is_refused(
    monkeypatch: pytest.MonkeyPatch, listens: str, allowed: tuple[str, ...] | None, status: int
) -> None:
    """However it was deployed."""

    async def check_ingress(*, has_keys: bool, insecure_no_key: bool) -> str:
        return listens

    monkeypatch.setattr(module, "check_ingress", check_ingress)
    monkeypatch.setattr(GatewayConnection, "refusals", None)
    monkeypatch.setattr(uvicorn.protocols.http.auto, "AutoHTTPProtocol", None)
    http = Http(HttpOptions(allowed_hosts=allowed), patience=1)
    await http.check()
    service = ScriptedService()
    app = http.make_app(service, Models.one(service, Model(name=MODEL, max_model_len=64, vocab_size=1000)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://evil.example") as client:
        assert (await client.get("/health")).status_code == status
