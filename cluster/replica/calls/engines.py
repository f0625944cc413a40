"""What a gateway asks of engine replicas, and what it hears when they refuse a request."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from cluster.replica.calls.lost import EngineFull, EngineRefused, OtherArithmetic, RequestMoved
from cluster.replica.delta_channel.messages import GatewayAddress
from engine.errors import FingerprintChanged, InputProcessingError, InvalidRequest, Overloaded, SquadronError
from engine.request import Adapter, Request


class EngineStopping(SquadronError):
    """The replica has been told to stop: another one should go on with its requests."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine replica did not take a request, or gave it back. A value, since Ray wraps
    exceptions in its own.
    """

    reason: Literal["invalid", "failed", "overloaded", "moved", "other_arithmetic", "engine_dead"]
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
            case FingerprintChanged():
                return cls("other_arithmetic", str(error))
            case EngineStopping():
                return cls("moved", str(error))
            case _:
                return cls("engine_dead", str(error))

    def to_exception(self) -> Exception:
        """The exception again; what another replica may mend as one of the EngineLost kinds."""
        match self.reason:
            case "invalid":
                return InvalidRequest(self.message, param=self.param, code=self.code)
            case "failed":
                return InputProcessingError(self.message)
            case "overloaded":
                return EngineFull(self.message)
            case "moved":
                return RequestMoved(self.message)
            case "other_arithmetic":
                return OtherArithmetic(self.message)
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

    def generate(self, request: Request, gateway: GatewayAddress, leaving: frozenset[str] = frozenset()) -> EngineCall:
        """Have a replica begin the request, or go on with it where another one was lost, and send
        its deltas to the gateway; its id is different from that of every other request there is.

        `leaving`: the names of replicas that take requests as long as no other one is ready.
        """

    def are_all_leaving(self, leaving: frozenset[str]) -> bool:
        """Whether there are such, and no other one is ready, as far as is known."""

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        """Have every replica that is there connect to the gateway and report to it, unless all are
        `connected` already.

        To be called again and again, since replicas come and go. Whether any could be reached.
        """

    async def are_running(self) -> bool:
        """Whether there are any, found out by another way than that which requests take."""

    async def num_settled(self) -> int | None:
        """How many run, found out in the same way; None while any starts, stops or is to be
        replaced, or where nobody tells.
        """

    async def leave(self) -> None:
        """End the gateway's process, which cannot reach replicas that run: another one in its place
        may, and is asked what this one was, where nothing has been answered yet.
        """

    async def kill(self, replica: str) -> None:
        """End the process of a replica that is silent; of no effect if it has gone."""

    async def probe(self, adapter: Adapter | None = None) -> list[str]:
        """Have every replica generate a token, with an adapter or without; what went wrong, a line
        each.
        """

    async def ask_any(self, question: str, *args: Any) -> Any:
        """What one replica answers to a question of `EngineDeployment` (`tokenize`), once there is
        one; raises EngineLost.
        """

    async def ask(self, question: str, *args: Any) -> list[Any]:
        """What each replica answers to a question of `EngineDeployment` (`trace`, `why`); raises
        Unavailable.
        """
