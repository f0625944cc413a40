"""Where a gateway may listen without API keys."""

import pytest

from cluster.api.front import listening
from cluster.api.front.listening import HOST, NODE_ADDRESS, check_ingress
from engine.errors import InvalidConfig

NETWORK = "192.0.2.5"


@pytest.fixture(autouse=True)
def haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listens on loopback."""
    monkeypatch.setattr(listening, "RAY_SERVE_ENABLE_HA_PROXY", True)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    monkeypatch.setenv(HOST, "127.0.0.1")
    monkeypatch.delenv(NODE_ADDRESS, raising=False)


async def test_a_gateway_that_other_nodes_reach_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does everybody else in their network."""
    monkeypatch.setenv(NODE_ADDRESS, NETWORK)
    with pytest.raises(InvalidConfig, match=f"^host='{NETWORK}' can be reached from other machines, and there is no"):
        await check_ingress(has_keys=False, insecure_no_key=False)
    assert await check_ingress(has_keys=True, insecure_no_key=False) == "127.0.0.1"
    assert await check_ingress(has_keys=False, insecure_no_key=True) == "127.0.0.1"


@pytest.mark.parametrize("address", ["", "127.0.0.1"], ids=["none", "loopback"])
async def test_one_on_loopback_needs_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_ADDRESS, address)
    assert await check_ingress(has_keys=False, insecure_no_key=False) == "127.0.0.1"
