"""What a gateway asks of engine replicas."""

from typing import Any, Literal, NamedTuple, Protocol

from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.refusal import Refusal
from cluster.weights.record import WeightsRecord
from engine.request import Adapter, Request


class EngineCall(Protocol):
    """One request's call to an engine replica, open for as long as the request is."""

    async def result(self) -> Refusal | str:
        """The name of the connection that the last delta has been sent on; raises EngineLost."""

    def cancel(self) -> None:
        """Have the replica abort the request; idempotent."""


class Engines(Protocol):
    """The engine replicas, whichever of them takes the next request."""

    record: WeightsRecord  # of the weights that they should have

    def generate(self, request: Request, gateway: GatewayAddress) -> EngineCall:
        """Have a replica, once there is one, begin the request, or go on with it where another one
        was lost, and send its deltas to the gateway; its id is different from that of every other
        request there is. For requests that no connected replica can take.
        """

    def count_call(self, replica: str, change: Literal[1, -1]) -> None:
        """One more, or one fewer, of this gateway's requests is open at that replica, which has
        been called over its connection.
        """

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        """Have the replicas that run and are not `connected` connect to the gateway and report to
        it, one that does not more and more rarely.

        To be called again and again, since replicas come and go. Whether any could be reached.
        """

    async def are_running(self) -> bool:
        """Whether there are any, found out by another way than that which requests take."""

    async def num_running(self) -> int | None:
        """How many there are, found out in the same way; None where nobody tells."""

    async def num_settled(self) -> int | None:
        """As `num_running`; None also while any starts, stops or is to be replaced."""

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

    async def ask_one(self, replica: str, question: str) -> Any:
        """What that replica answers, as long as it may take; None if it is gone, or fails."""

    async def ask(self, question: str, *args: Any) -> list[Any]:
        """What each replica answers to a question of `EngineDeployment` (`trace`, `why`); raises
        Unavailable.
        """

    async def change(self, question: str, *args: Any) -> list[Any]:
        """As `ask`, for as long as it takes; a line of text for a replica that was lost meanwhile.
        Empty if there is none.
        """


class PrefillEngines(NamedTuple):
    """Engine replicas that compute prompts for those that answer."""

    engines: Engines
    min_tokens: int  # of a prompt's part that is new, about
    is_shared: bool  # blocks are in their nodes' memory, from where they are served to other nodes
