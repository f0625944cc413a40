"""What `squadron serve` says when it is ready."""

from pathlib import Path

import pytest

from cluster.commands.serve import _say_ready
from cluster.commands.server.server_options import ServerOptions
from cluster.launch.ray_cluster import RayCluster


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:8000/v1"), ("2001:db8::1", "http://[2001:db8::1]:8000/v1")]
)
def test_the_address_is_one_that_clients_can_read(capsys: pytest.CaptureFixture[str], host: str, url: str) -> None:
    _say_ready(ServerOptions(host=host), RayCluster("10.0.0.1:6379", {}, Path(), None), "http")
    assert capsys.readouterr().out == f"Ready: {url} (Ray cluster 10.0.0.1:6379); Ctrl-C ends it\n"
