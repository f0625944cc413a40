"""The requests on an engine replica: it takes them from gateways, and sends deltas back."""

import asyncio

from cluster.replica.condition import Condition
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.refusal import EngineStopping, Refusal
from cluster.replica.running import RunningRequests
from cluster.replica.threads.admission_threads import AdmissionThreads
from cluster.replica.traces import Traces
from engine.errors import EngineDead, SquadronError
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput
from engine.request import Request


class Requests:
    """Lives in one event loop."""

    def __init__(self, engine: AsyncEngine, condition: Condition, traces: Traces) -> None:
        self._engine = engine
        self._condition = condition
        self._traces = traces
        self._running = RunningRequests()
        self._admissions = AdmissionThreads(engine)
        self._client = DeltaClient(self._running.lose, self.take)
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._running)

    async def take(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        """Take a request and stay until its last delta has been sent to the gateway; the name of
        the connection that it went over.
        """
        try:
            self._condition.check(request)
            connection = await self._client.connect(gateway)
        except SquadronError as error:
            return self._refuse(error)
        except OSError as error:
            return Refusal("engine_dead", f"it cannot reach the gateway: {error}")
        running = await self._running.begin(request, gateway)
        self._client.send(gateway, [self._taken(request.id, running.attempt)])
        trace = self._traces.begin(request)
        adding = self._admissions.add(request)
        try:
            await asyncio.wrap_future(adding)
            self._client.hear(gateway, request.beginnings)  # others learn of no prompt that is not computed
            await running.done
        except SquadronError as error:
            return self._refuse(error)
        finally:
            self._traces.end(trace, running.metrics, is_finished=running.has_been_answered)
            if running.is_finished:
                self._running.end(request.id)
            else:
                # Behind the add, which goes on where the caller went away meanwhile.
                adding.add_done_callback(lambda _: self._abort(request.id))
        return connection

    def _abort(self, request_id: str) -> None:
        """In any thread."""
        self._engine.abort(request_id)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._running.end, request_id)

    def _refuse(self, error: SquadronError) -> Refusal:
        """If the replica is at fault, a report goes first: no gateway sends it another request."""
        refusal = Refusal.of(error)
        if refusal.reason in ("engine_dead", "moved"):
            self.report()
        return refusal

    def send(self, deltas: list[RequestOutput]) -> None:
        """One step's."""
        for gateway, news in self._running.take(deltas, is_alive=not self._engine.is_dead).items():
            self._client.send(gateway, news)

    def tell_weights(self) -> None:
        """The engine has other weights, with which it goes on with what runs, or is awake."""
        for request_id, running in self._running:
            self._client.send(running.gateway, [self._taken(request_id, running.attempt)])
        self.report()

    def _taken(self, request_id: str, attempt: int) -> RequestOutput:
        condition = self._condition
        return RequestOutput(
            request_id,
            attempt,
            [],
            [],
            finished=False,
            fingerprint=condition.fingerprint or None,
            weights_version=condition.weights_version,
        )

    async def connect(self, gateway: GatewayAddress) -> None:
        """Report to the gateway from now on, if it can be reached."""
        try:
            await self._client.connect(gateway)
        except OSError:
            return
        self.report()

    def report(self) -> None:
        """Tell the gateways how the replica is, and which prompts' beginnings it has lost."""
        self._client.report(self._condition.look(), self._engine.observer.lost_beginnings())

    def hand_back(self, blocks_at: str | None = None) -> None:
        """Another replica goes on with what runs here, from what the gateways have after this
        step. `blocks_at`: see `Resume`.
        """
        self._running.fail_all(EngineStopping("its engine replica is told to stop", blocks_at))

    async def close(self) -> None:
        """The engine is shut down."""
        self._running.finish_all(EngineDead("the engine is shut down"))
        self._admissions.close()
        await self._client.close()
