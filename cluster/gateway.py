"""The gateway's work: admits requests to an engine replica, keeps their journals, and tries again where a replica is lost."""

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

from cluster.api.service import ChatPrompt, Prompt
from cluster.delta_channel import DeltaServer, GatewayAddress
from cluster.journal import EngineLost, EngineRefused, Journal
from engine.async_engine import Prompt as EnginePrompt
from engine.errors import EngineDead, InputProcessingError, InvalidRequest, Overloaded, SquadronError
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.tokenizer import Message


@dataclass(frozen=True, slots=True)
class Admission:
    """What an engine replica needs to begin a request, or to go on with it where another one was lost."""

    request_id: str  # the gateway's own, different from that of every other request there is
    prompt: EnginePrompt
    params: SamplingParams
    gateway: GatewayAddress
    attempt: int = 0
    output_ids: list[list[int]] = field(default_factory=list)
    priority: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine replica did not take a request. A value, since Ray wraps exceptions in its own."""

    reason: Literal["invalid", "failed", "overloaded", "engine_dead"]
    message: str
    param: str | None = None
    code: str = ""

    @classmethod
    def of(cls, error: SquadronError) -> Self:
        match error:
            case InvalidRequest():
                return cls("invalid", error.message, error.param, error.code)
            case InputProcessingError():
                return cls("failed", str(error))
            case Overloaded():
                return cls("overloaded", str(error))
            case _:
                return cls("engine_dead", str(error))

    def to_exception(self) -> Exception:
        """The exception again; EngineDead as EngineRefused, since another replica may be alive."""
        match self.reason:
            case "invalid":
                return InvalidRequest(self.message, param=self.param, code=self.code)
            case "failed":
                return InputProcessingError(self.message)
            case "overloaded":
                return Overloaded(self.message)
            case "engine_dead":
                return EngineRefused(self.message)


class EngineCall(Protocol):
    """One request's call to an engine replica, open for as long as the request is."""

    async def result(self) -> Refusal | str:
        """The name of the connection that the last delta has been sent on; raises EngineLost."""

    def cancel(self) -> None:
        """Have the replica abort the request; idempotent."""


class Engines(Protocol):
    """The engine replicas, whichever of them takes the next request."""

    def generate(self, admission: Admission) -> EngineCall: ...

    async def health(self) -> list[str]:
        """What is wrong, a line each; nothing if requests can be taken."""

    async def trace(self) -> list[dict[str, Any]]:
        """A Chrome trace of each replica."""

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase, of the replica that knows the request last."""


NUM_REQUESTS_REMEMBERED = 4096  # for `why`
# A replica whose engine has stopped answers so at once, for the seconds until Serve has failed its health three times and
# replaced it. Its refusals are no attempts while these pauses between them last.
REFUSED_PAUSES = (1.0, 2.0, 4.0, 8.0)


class Gateway:
    """The `Service` behind the HTTP API and the handle. Lives in one event loop."""

    def __init__(
        self, engines: Engines, *, max_attempts: int, refused_pauses: tuple[float, ...] = REFUSED_PAUSES
    ) -> None:
        """`refused_pauses` in seconds; with one attempt there are none."""
        self._engines = engines
        self._max_attempts = max_attempts
        self._refused_pauses = refused_pauses if max_attempts > 1 else ()
        self._journals: dict[str, Journal] = {}  # by the gateway's own request id
        self._own_ids: OrderedDict[str, str] = OrderedDict()  # by the client's, for those who ask why
        self._server = DeltaServer(self._on_deltas, self._on_lost)
        self._name = secrets.token_hex(8)
        self._count = itertools.count()
        self._address: GatewayAddress

    async def start(self, host: str) -> None:
        """Take deltas on a free port of `host`."""
        self._address = await self._server.start(host)

    async def close(self) -> None:
        await self._server.close()

    async def generate(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's deltas. Raises InvalidRequest, InputProcessingError, Overloaded, or EngineDead once no attempt is left.

        Closing the generator early aborts the request.
        """
        if params.seed is None and params.beam_width is None:
            # Drawn here, so that the next attempt samples what this one would have.
            params = replace(params, seed=secrets.randbits(63))
        own_id = f"{self._name}-{next(self._count)}"
        plain: EnginePrompt = list[Message](prompt.messages) if isinstance(prompt, ChatPrompt) else prompt
        admission = Admission(own_id, plain, params, self._address, priority=priority, cache_salt=cache_salt)
        journal = self._journals[own_id] = Journal(request_id, params.num_samples)
        self._own_ids[request_id] = own_id
        if len(self._own_ids) > NUM_REQUESTS_REMEMBERED:
            self._own_ids.popitem(last=False)
        num_lost = 0
        pauses = iter(self._refused_pauses)
        try:
            while True:
                pause = 0.0
                call = self._engines.generate(admission)
                watch = asyncio.create_task(self._watch(call, journal))
                try:
                    async for delta in journal.read():
                        yield delta
                    return
                except EngineLost as lost:
                    if isinstance(lost, EngineRefused):
                        pause = next(pauses, 0.0)
                    num_lost += not pause
                    if num_lost >= self._max_attempts:
                        raise EngineDead(f"the engine was lost and is restarting: {lost.reason}") from lost
                finally:
                    watch.cancel()
                    call.cancel()
                admission = replace(admission, attempt=journal.next_attempt(), output_ids=journal.output_ids)
                await journal.rest(pause)
        finally:
            del self._journals[own_id]

    def abort(self, request_id: str) -> None:
        """End every request of that id; their streams finish with "abort"."""
        for journal in self._journals.values():
            if journal.request_id == request_id:
                journal.abort()

    async def health(self) -> list[str]:
        """What is wrong, a line each; nothing if requests can be taken."""
        return await self._engines.health()

    async def trace(self) -> dict[str, Any]:
        """The last steps of every replica, each a process of the trace."""
        traces = await self._engines.trace()
        events = [event | {"pid": pid} for pid, trace in enumerate(traces) for event in trace["traceEvents"]]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase; None for a request that is not known (any more)."""
        own_id = self._own_ids.get(request_id)
        return None if own_id is None else await self._engines.why(own_id)

    async def _watch(self, call: EngineCall, journal: Journal) -> None:
        """Tell the journal how the call ended. If well, the last delta has come or is on its way over that connection."""
        try:
            result = await call.result()
        except EngineLost as lost:
            journal.fail(lost)
            return
        if isinstance(result, Refusal):
            journal.fail(result.to_exception())
        elif self._server.is_connected(result):
            journal.source = result
        else:
            journal.fail(EngineLost("its connection ended before the last delta"))

    def _on_deltas(self, deltas: list[RequestOutput], connection: str) -> None:
        for delta in deltas:
            journal = self._journals.get(delta.request_id)
            if journal is not None:
                journal.accept(delta, connection)

    def _on_lost(self, connection: str) -> None:
        for journal in self._journals.values():
            if journal.source == connection:
                journal.fail(EngineLost("its connection ended"))
