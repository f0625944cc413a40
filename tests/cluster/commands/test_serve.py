"""Which servers are refused before anything starts."""

import pytest

from cluster.api.keys.key_ring import KeyRing
from cluster.commands.serve import check_open
from cluster.commands.server_options import ServerOptions
from engine.errors import InvalidConfig


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_everybody_is_let_in_only_where_that_is_said(host: str) -> None:
    with pytest.raises(InvalidConfig, match=f"host='{host}' can be reached .* --insecure-no-key"):
        check_open(ServerOptions(host=host), KeyRing())
    check_open(ServerOptions(host=host, insecure_no_key=True), KeyRing())
    check_open(ServerOptions(host=host), KeyRing(["key"]))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    check_open(ServerOptions(host=host), KeyRing())


def test_keys_that_would_be_ignored() -> None:
    with pytest.raises(InvalidConfig, match="insecure_no_key is for a server without API keys, and there are some"):
        check_open(ServerOptions(insecure_no_key=True), KeyRing(["key"]))
