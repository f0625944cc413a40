"""The Serve deployment of the gateway: what clients call, over HTTP or by handle."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from cluster.api.exchange import Answer
from cluster.gateway.handle import control, handle, routes
from cluster.gateway.options import GatewayOptions
from cluster.gateway.parts import start_parts
from cluster.metrics.ledger import Ledger
from cluster.owner import Owner
from cluster.stop_signal import StopSignal


class GatewayDeployment:
    """The ingress: the HTTP API, and the methods that other Ray jobs call (see
    `cluster.gateway.handle`).
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        engines: Sequence[DeploymentHandle[Any]],
        prefill_engines: Sequence[DeploymentHandle[Any] | None],
        owner: Owner,
        options: GatewayOptions,
    ) -> None:
        """`engines`: of each model, in the order of `options.models`; so are those that compute
        prompts for them, if there are any.
        """
        self._stop_signal = StopSignal()
        self._owner = owner
        self._parts = await start_parts(list(zip(engines, prefill_engines, strict=True)), owner, options)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._parts.make_app()

    def check_health(self) -> None:
        """Raises ToldToStop after a SIGTERM: Serve then starts another gateway at once, and ends
        this one when its last stream has.
        """
        self._stop_signal.check()

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.generate(self._parts.application.models, request)

    async def stream(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(handle.stream(self._parts.application.models, request)) as answers:
            async for answer in answers:
                yield answer

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.chat(self._parts.application.models, request)

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        return await routes.post(self._parts.inner_app, path, body, headers)

    async def events(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(routes.events(self._parts.inner_app, path, body, headers)) as events:
            async for event in events:
                yield event

    async def update_weights(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ends what it has begun, whether or not its caller still waits."""
        return await control.update_weights(self._parts.application.models, request)

    async def init_weights_update_group(self, request: dict[str, Any]) -> dict[str, Any]:
        return await control.init_group(self._parts.application.models, request)

    async def destroy_weights_update_group(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.destroy_group(self._parts.application.models, request)

    async def pause(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.control(self._parts.application.models, "pause", request)

    async def resume(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.control(self._parts.application.models, "resume", request)

    async def sleep(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.control(self._parts.application.models, "sleep", request)

    async def wake_up(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.control(self._parts.application.models, "wake_up", request)

    async def control_state(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await control.control_state(self._parts.application.models, request)

    async def ask(self, url: str, body: bytes, key: str | None = None) -> Answer:
        """The HTTP API's answer to a POST of JSON that no client waits for (a line of a batch), for
        the API key of that name.
        """
        return await self._parts.http.ask(url, body, key)

    async def drain(self, caller: Owner, grace: float) -> None:
        """See `Gateway.drain`. For good; raises NotOwner."""
        self._owner.check(caller, "to drain a gateway")
        await self._parts.application.gateways.drain(grace)

    async def abort(self, request_id: str) -> None:
        """End the request on whichever gateway it is."""
        await self._parts.application.gateways.abort_anywhere(request_id)

    async def abort_here(self, request_id: str) -> None:
        self._parts.application.gateways.abort(request_id)

    async def why_here(self, request_id: str) -> dict[str, Any] | None:
        """This gateway's own answer; other gateways are not asked."""
        return await self._parts.application.gateways.why_here(request_id)

    async def look_for_adapters_here(self) -> None:
        """See `AdapterLoading.look`."""
        await self._parts.application.look_for_adapters()

    async def wait_for_all_models(self) -> None:
        """See `ServedApplication.wait_for_all`."""
        await self._parts.application.wait_for_all()

    async def exchange_here(self, ledgers: dict[str, Ledger]) -> dict[str, Ledger]:
        """See `PeerGateways.exchange`."""
        return self._parts.application.gateways.exchange(ledgers)
