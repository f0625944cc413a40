"""The Serve deployment of an engine replica: the methods that gateways call."""

from typing import Any

from cluster.owner import Owner
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.life import Life
from cluster.replica.refusals.refusal import Refusal
from cluster.replica.replica import Replica
from cluster.replica.serve_process import end_at_sigterm, enter_replica
from cluster.telemetry.tracing import NO_TELEMETRY, Telemetry
from engine.config import EngineConfig
from engine.outputs import Tokens
from engine.records.recorder import Event
from engine.request import Adapter, Request

END_SECONDS = 10.0  # for a replica to end once it has handed back its requests


class EngineDeployment:
    """One engine and its workers, which live in the replica's placement group and die with it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: EngineConfig, owner: Owner, telemetry: Telemetry = NO_TELEMETRY, patience: float = 0
    ) -> None:
        """`patience`: seconds for which a replica that is to end waits for the next one."""
        self._owner = owner
        self._life: Life | None = None  # once the engine has started
        name = enter_replica()
        if name:
            end_at_sigterm()
        self._replica = await Replica.make(config, name, telemetry, owner.token if name else None)
        await self._replica.start()
        self._life = Life(self._replica, patience, END_SECONDS)

    async def generate(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        """See `Requests.take`."""
        return await self._replica.requests.take(request, gateway)

    async def tokenize(self, request: Request, with_texts: bool) -> Tokens | Refusal:
        """See `Tokenizing.tokenize`."""
        return await self._replica.tokenizing.tokenize(request, with_texts=with_texts)

    async def detokenize(self, token_ids: list[int]) -> str | Refusal:
        """All of it as one text."""
        return await self._replica.tokenizing.detokenize(token_ids)

    async def tokenizer_settings(self) -> dict[str, Any] | Refusal:
        """See `Tokenizer`."""
        return await self._replica.tokenizing.settings()

    async def connect(self, gateway: GatewayAddress) -> None:
        """Report to the gateway from now on, if it can be reached."""
        await self._replica.requests.connect(gateway)

    async def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return self._replica.answers.stats()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve asks for, by its name, to hand it to `cluster.launch.config.load_policy`."""
        return {"load": self._replica.answers.load()}

    async def events(self) -> tuple[str, tuple[Event, ...]]:
        """The replica's name, and what happened to it last."""
        return self._replica.name, self._replica.engine.observer.events()

    async def probe(self, adapter: Adapter | None = None) -> str | None:
        """See `Answers.probe`."""
        return await self._replica.answers.probe(adapter)

    async def steps(self, after: dict[str, int], most: int) -> tuple[str, list[Any]]:
        """The replica's name, and its first `most` `StepRecord`s after the step named for it."""
        name = self._replica.name
        return name, await self._replica.engine.observer.steps_after(after.get(name, -1), most)

    async def view(self) -> dict[str, Any] | None:
        """See `Answers.view`."""
        return await self._replica.answers.view()

    async def worker_pids(self) -> tuple[str, list[int]]:
        """The replica's name, and its workers' process ids, in order of rank."""
        return self._replica.name, self._replica.answers.worker_pids()

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """See `Answers.why`."""
        return await self._replica.answers.why(request_id)

    async def change(self, what: str, *arguments: Any) -> Any:
        """A method of `Changes`."""
        return await getattr(self._replica.changes, what)(*arguments)

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model."""
        return self._replica.answers.model_info()

    def check_health(self) -> None:
        """See `Life.check_health`."""
        assert self._life is not None
        self._life.check_health()

    async def stay(self) -> None:
        """See `Departure.stay`."""
        assert self._life is not None
        await self._life.stay()

    async def stop(self, caller: Owner) -> None:
        """End the workers; running requests are handed back. Raises NotOwner."""
        self._owner.check(caller, "to stop an engine")
        self._replica.hand_back()
        await self._replica.shut_down()

    async def __del__(self) -> None:
        if self._life is not None:
            self._life.end()
        await self._replica.close()
