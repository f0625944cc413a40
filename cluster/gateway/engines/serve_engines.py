"""The engine replicas behind a Serve handle."""

import asyncio
import logging
from typing import Any, Literal

from ray.serve.handle import DeploymentHandle

from cluster.gateway.engines.questions import ask_all, ask_any, ask_one, ask_those_that_answer, change_all, probe_all
from cluster.gateway.engines.reach import BLIND_SECONDS, CONNECT_SECONDS, EACH, INTRODUCTION_SECONDS, Introductions
from cluster.gateway.engines.serve_call import ServeCall
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.lost import EngineLost
from cluster.serve_status import ServeStatus, count_call, end_this_process, kill_replica, running_replicas
from cluster.weights.record import WeightsRecord
from engine.request import Adapter, Request

logger = logging.getLogger("squadron.gateway")


class ServeEngines:
    """The engine replicas behind a Serve handle."""

    def __init__(self, engines: DeploymentHandle[Any], run: str, source: str) -> None:
        """`run` and `source`: see `WeightsRecord`."""
        self._engines = engines
        self.record = WeightsRecord(engines.app_name, engines.deployment_name, run, source)
        self._status = ServeStatus(engines)
        self._introductions = Introductions(self._connect_all)

    async def model_info(self) -> dict[str, Any]:
        """The facts about the model that the HTTP API needs, once there is a replica. Ends the
        process if a running replica does not answer: see `leave`.
        """
        while True:
            were_running = await self.are_running()
            try:
                async with asyncio.timeout(BLIND_SECONDS):
                    model: dict[str, Any] = await ask_any(self._engines, "model_info")
                return model
            except EngineLost as lost:  # the next one is asked
                logger.warning("an engine replica did not tell of its model: %s", lost)
                await asyncio.sleep(INTRODUCTION_SECONDS)
            except TimeoutError:
                if were_running and await self.are_running():
                    logger.error("engine replicas run, and none told of its model for %.0f s", BLIND_SECONDS)
                    await self.leave()

    def generate(self, request: Request, gateway: GatewayAddress) -> ServeCall:
        return ServeCall(self._engines.generate.remote(request, gateway))

    def count_call(self, replica: str, change: Literal[1, -1]) -> None:
        count_call(self._engines, replica, change)

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        running = running_replicas(self._engines)
        if running is not None:
            is_reached = not running.isdisjoint(connected)
            return await self._introductions.turn(gateway, running - connected, is_reached=is_reached)
        if connected and await self.num_running() == len(connected):
            return True
        return await self._introductions.turn(gateway, {EACH}, is_reached=bool(connected))

    async def _connect_all(self, gateway: GatewayAddress) -> None:
        """Raises ValueError if none is there, or one does not answer."""
        told = await ask_those_that_answer(self._engines, "connect", gateway, seconds=CONNECT_SECONDS)
        if len(told) < (await self.num_running() or 1):
            raise ValueError("no replica is there, or one does not answer")

    async def are_running(self) -> bool:
        return await self._status.are_running()

    async def num_running(self) -> int | None:
        return await self._status.num_running()

    async def num_settled(self) -> int | None:
        return await self._status.num_settled()

    async def leave(self) -> None:
        end_this_process()

    async def kill(self, replica: str) -> None:
        await asyncio.to_thread(kill_replica, replica)

    async def probe(self, adapter: Adapter | None = None) -> list[str]:
        return await probe_all(self._engines, adapter)

    async def ask_any(self, question: str, *args: Any) -> Any:
        return await ask_any(self._engines, question, *args)

    async def ask_one(self, replica: str, question: str) -> Any:
        return await ask_one(replica, question)

    async def ask(self, question: str, *args: Any) -> list[Any]:
        return await ask_all(self._engines, question, *args)

    async def change(self, question: str, *args: Any) -> list[Any]:
        return await change_all(self._engines, question, *args)
