"""The requests on an engine replica, and the gateways that their deltas go to."""

import asyncio
from collections.abc import Iterator

from cluster.replica.delta_channel.messages import GatewayAddress
from engine.errors import FINGERPRINT_CHANGED, EngineDead, FingerprintChanged, SquadronError
from engine.outputs import RequestMetrics, RequestOutput
from engine.request import Request


class Running:
    """An attempt at a request on this replica, and where its deltas go."""

    def __init__(self, attempt: int, gateway: GatewayAddress) -> None:
        self.gateway = gateway
        self.attempt = attempt
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_finished = False  # the engine has no state of it any more
        self.ended = asyncio.Event()  # nor will it have any
        self.metrics: RequestMetrics | None = None  # once it has output
        self._has_prompt = False

    @property
    def has_been_answered(self) -> bool:
        """Whether its last delta was one for the client, and not the end of this replica."""
        return self.done.done() and not self.done.cancelled() and self.done.exception() is None

    def finish(self, error: SquadronError | None = None) -> None:
        self.is_finished = True
        if error is not None:
            self.fail(error)
        elif not self.done.done():
            self.done.set_result(None)

    def fail(self, error: SquadronError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def trim(self, delta: RequestOutput) -> None:
        """Take out of the delta what the gateway has (the prompt, once sent) or does not want yet
        (the times, which still change).
        """
        if self._has_prompt:
            delta.prompt_token_ids, delta.prompt, delta.max_tokens = [], None, None
        self._has_prompt = True
        self.metrics = delta.metrics
        if not delta.finished:
            delta.metrics = None


class RunningRequests:
    """By id. Lives in one event loop."""

    def __init__(self) -> None:
        self._requests: dict[str, Running] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[tuple[str, Running]]:
        return iter(self._requests.items())

    async def begin(self, request: Request, gateway: GatewayAddress) -> Running:
        """Once an earlier attempt at the request, which its gateway has lost before this replica
        could know, has ended here.
        """
        while (earlier := self._requests.get(request.id)) is not None:
            earlier.fail(EngineDead("a later attempt at its request has come"))
            await earlier.ended.wait()
        running = self._requests[request.id] = Running(request.resume.attempt, gateway)
        return running

    def end(self, request_id: str) -> None:
        self._requests.pop(request_id).ended.set()

    def take(self, deltas: list[RequestOutput], *, is_alive: bool) -> dict[GatewayAddress, list[RequestOutput]]:
        """What each gateway is to be sent of a step's deltas, which are changed here; `is_alive`:
        whether the engine is.
        """
        by_gateway: dict[GatewayAddress, list[RequestOutput]] = {}
        for delta in deltas:
            running = self._requests.get(delta.request_id)
            if running is None or delta.attempt != running.attempt:
                continue
            if delta.error is not None and delta.error_code is None and not is_alive:
                running.finish(EngineDead(delta.error))  # not for the client: another replica may continue
                continue
            if delta.error is not None and delta.error_code == FINGERPRINT_CHANGED:
                running.finish(FingerprintChanged(delta.error))  # likewise
                continue
            running.trim(delta)
            by_gateway.setdefault(running.gateway, []).append(delta)
            if delta.finished:
                running.finish()
        return by_gateway

    def lose(self, gateway: GatewayAddress) -> None:
        """The connection to the gateway has ended."""
        for running in self._requests.values():
            if running.gateway == gateway:
                running.fail(EngineDead("the connection to the gateway ended"))

    def fail_all(self, error: SquadronError) -> None:
        """Fail all calls; the engine still has the requests."""
        for running in self._requests.values():
            running.fail(error)

    def finish_all(self, error: SquadronError) -> None:
        """The engine has no state of them any more."""
        for running in self._requests.values():
            running.finish(error)
