"""What a gateway does for requests that come through Serve's proxies."""

from fastapi import FastAPI

from cluster.api.connection.window import WithinWindow
from cluster.api.edge.lost_gateway import TellTaken
from cluster.api.edge.proxied import BareProxyWarning


def expect_proxies(app: FastAPI, patience: float) -> None:
    """`patience`: seconds that a request may wait for a gateway."""
    app.add_middleware(WithinWindow)
    app.add_middleware(BareProxyWarning)
    app.add_middleware(TellTaken, patience=patience)
