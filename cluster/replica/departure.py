"""How an engine replica leaves when it is told to end, by SIGTERM or by Serve: if a second engine
has room, the next one is started first, and this one serves until it is ready.

Serve starts another replica as soon as this one fails its health checks, or as soon as Serve itself
has told this one to stop. It then gives this one no more requests. Gateways do so themselves, by
calls to the replica, as long as Serve lists no other one.
"""

import asyncio
import logging
import threading
from contextlib import suppress

from ray import serve
from ray.exceptions import RayError

from cluster.replica.calls.direct import call_replica, find_replica
from cluster.replica.serve_process import end_process, is_being_stopped
from cluster.serve_status import ServeStatus
from cluster.stop_signal import ToldToStop, has_sigterm_come, note_sigterm
from cluster.workers.room_beside import lacking, still_lacking
from engine.config import EngineConfig

logger = logging.getLogger("squadron.engine")

HOLD_SECONDS = 3.0  # for Ray to find this replica's own actor
LOOK_SECONDS = 0.2  # between looks whether the next one is ready


class Departure:
    """One replica's, in Serve. Lives in one event loop."""

    def __init__(self, name: str, config: EngineConfig, patience: float) -> None:
        """`name`: the replica's. `patience`: seconds that it waits for the next one."""
        self._name = name
        self._config = config
        self._patience = patience
        me = serve.get_replica_context()
        self.app_name = me.app_name
        self._status = ServeStatus(serve.get_deployment_handle(me.deployment, me.app_name))
        self._before: frozenset[str] | None = None  # replicas that ran when it was told to leave, if they are known
        self._has_sigterm = False
        self._may_leave = False
        self._has_left = asyncio.Event()
        note_sigterm()

    def is_told(self) -> bool:
        """Whether the replica is to leave. Must be called every few seconds; ends the process at a
        second SIGTERM.
        """
        if has_sigterm_come():
            if self._has_sigterm:
                end_process()
            self._has_sigterm = True
        return self._has_sigterm or is_being_stopped()

    def check(self) -> None:
        """Raises ToldToStop if Serve is to start the next replica, and end this one."""
        if self._has_sigterm and self._may_leave:
            raise ToldToStop("this process got a SIGTERM")

    async def hold(self) -> None:
        """Keep Serve, which ends no replica that has an open call, from ending this one before
        `leave`. The next one is any that runs later on.
        """
        replicas = await self._status.replicas()
        self._before = None if replicas is None else replicas.running
        with suppress(TimeoutError, RayError, ValueError):
            async with asyncio.timeout(HOLD_SECONDS):
                call_replica(await asyncio.to_thread(find_replica, self._name), "stay")

    async def is_deleted(self) -> bool:
        """Whether the application is, and no other replica will come."""
        return is_being_stopped() and await self._status.is_deleted()

    async def has_room(self, num_blocks: int) -> bool:
        """Whether the next one can start beside this one; `num_blocks`: of its cache."""
        replicas = await self._status.replicas()
        full_nodes = frozenset[str]() if replicas is None else replicas.full_nodes
        lack = await still_lacking(lambda: lacking(self._config, num_blocks, full_nodes))
        if lack is not None:
            logger.info("told to stop, at once: the next engine cannot start before: %s", lack)
            return False
        logger.info("told to stop; it serves until the next engine is ready, %g s at most", self._patience)
        return True

    async def wait(self) -> None:
        """Return when the next one is ready, or after `patience` seconds."""
        self._may_leave = True
        with suppress(TimeoutError, RayError):
            async with asyncio.timeout(self._patience):
                while not is_being_stopped() or await self._awaits_next():
                    await asyncio.sleep(LOOK_SECONDS)

    async def _awaits_next(self) -> bool:
        """In a rolling update Serve starts one after the other: those that come after the next one
        may need the room that this one takes.
        """
        replicas = await self._status.replicas()
        if replicas is not None and self._before is not None and replicas.running - self._before:
            return False
        return await self._status.awaits_replicas()

    async def has_heirs(self) -> bool:
        """Whether other replicas can go on with its requests now. Not while all end, and Serve may
        know of no deployment any more.
        """
        num_running = await self._status.num_running()
        return num_running is not None and num_running > (not is_being_stopped())

    async def stay(self) -> None:
        """Return at `leave`."""
        await self._has_left.wait()

    def leave(self, seconds: float) -> None:
        """The requests have been handed back: end the process, unless Serve does within
        `seconds`.
        """
        self._has_left.set()
        if not is_being_stopped():
            end_process()
        timer = threading.Timer(seconds, end_process)
        timer.daemon = True
        timer.start()
