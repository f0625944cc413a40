"""The HTTP side of a gateway, as Serve's proxies and its own server need it."""

from typing import Any

import uvicorn.protocols.http.auto
from fastapi import FastAPI

from cluster.api.app import build
from cluster.api.front.behind_proxies import expect_proxies
from cluster.api.front.gateway_connection import GatewayConnection
from cluster.api.front.listening import check_ingress, tell_patience
from cluster.api.models.model import Models
from cluster.api.options import HttpOptions
from cluster.api.service import Application
from cluster.gateway.ask import ask


class Http:
    """One gateway's."""

    def __init__(self, options: HttpOptions, patience: float) -> None:
        """`patience`: seconds that a request may wait for a gateway."""
        self._options = options
        self._patience = patience
        # Of the server that Serve starts in this process where a load balancer listens (HAProxy).
        uvicorn.protocols.http.auto.AutoHTTPProtocol = GatewayConnection

    async def check(self) -> None:
        """See `check_ingress`. Without `allowed_hosts`, those of where it listens are."""
        options = self._options
        host = await check_ingress(has_keys=bool(options.api_keys), insecure_no_key=options.insecure_no_key)
        self._options = options.listening_on(host)

    async def start(self) -> None:
        """Tell the proxies, and follow the file of API keys."""
        await tell_patience(self._patience)
        self._options.api_keys.look()
        self._options.api_keys.watch()

    async def ask(self, url: str, body: bytes, key: str | None) -> tuple[int, dict[str, str], bytes]:
        """See `cluster.gateway.ask`."""
        return await ask(self._inner, url, body, self._options.api_keys, key)

    def make_app(self, application: Application, models: Models, **parts: Any) -> FastAPI:
        """`parts`: see `build`."""
        app = self._inner = build(application, models, self._options, **parts)
        GatewayConnection.refusals = app.state.early
        expect_proxies(app, self._patience)
        return app

    def make_inner_app(self, application: Application, models: Models, **parts: Any) -> FastAPI:
        """The same routes for callers by handle, which need no key; `parts`: see `build`."""
        return build(application, models, HttpOptions(strict_fields=self._options.strict_fields), **parts)
