"""Has all engine replicas of a model changed: other weights, pauses, sleep."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from cluster.api.errors import Unavailable
from cluster.gateway.engines.any_replica import AnyReplica
from cluster.head.store import NoRecord
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import EngineReport
from cluster.weights.asked import AskedWeights, Done
from cluster.weights.groups.messages import Meeting
from engine.executor import Weights

logger = logging.getLogger("squadron.gateway")

LOOK_SECONDS = 0.2  # between looks whether all replicas have changed
RETRY_AFTER = 5.0  # seconds
NOBODY = "No engine replica is there"
LATE = "Another change of weights, which was asked for later, has taken the place of this one"


class Changes:
    """One gateway's. It holds the last weights, which it was given or learned of the replicas, and
    gives them to replicas that start later. Another gateway may be asked for others meanwhile: then
    the change of the higher number counts, everywhere.
    """

    def __init__(
        self,
        engines: Engines,
        reports: Callable[[], list[EngineReport]],
        patience: float,
        computing: "Changes | None" = None,
    ) -> None:
        """`patience`: seconds that it waits for a replica that starts. `computing`: of the engines
        that compute prompts for these, which do as these do.
        """
        self._computing = computing
        self._engines = engines
        self.any = AnyReplica(engines, patience)
        self._reports = reports
        self._patience = patience
        self._turn = asyncio.Lock()
        self._number = 0  # of the last change
        self._weights: Weights | None = None  # of that one

    async def update(self, asked: AskedWeights, mode: str) -> dict[str, Any]:
        """Every rank of every replica has the weights when this returns: their version, and the
        fingerprint of the engines, None if all have slept since they started. Raises InvalidRequest
        if the weights are refused, Unavailable if a replica could not be given them: then those
        that have them are given the ones from before.
        """
        if asked.offer is not None:
            await self.any.ask("change", "check_offer", asked)
            asked = AskedWeights(asked.version, tensors=await self._engines.record.groups.receive(asked.offer))
        async with self._turn:
            number = await self._claim()
            weights: Weights = await self.any.ask("change", "check", asked.named(str(number)))
            answers = await self._engines.change("change", "update", number, weights, mode)
            if not answers:
                raise _unavailable(NOBODY)
            dones = [done for done in answers if isinstance(done, Done)]
            if any(done.is_late for done in dones):  # all replicas get the later ones, or those from before
                raise _unavailable(LATE)
            refusals = [done.problem for done in dones if done.problem is not None]
            if refusals:
                await self._change_back()
                raise _unavailable(f"The weights have not been changed: {'; '.join(sorted(set(refusals)))}")
            await self._write(number, weights)
            reports = await self._until_all_have(number, weights)
            logger.info("all %d engine replicas have the weights of version %s", len(reports), weights.version)
            if self._computing is not None:
                await self._computing.follow(weights)
            return {
                "weights_version": weights.version,
                "system_fingerprint": next((each.fingerprint for each in reports if each.fingerprint), None),
                "num_replicas": len(reports),
            }

    async def follow(self, weights: Weights) -> None:
        """Those that answer have these weights: so do these when it returns, but for such as are
        late, which get them as replicas do that start. Until then nobody asks them anything.
        """
        async with self._turn:
            try:
                number = await self._claim()
                await self._write(number, weights)
                answers = await self._engines.change("change", "update", number, weights, "wait")
            except Unavailable as error:
                logger.warning("prompts are computed where they are answered until the next change: %s", error.message)
                return
            problems = [done if isinstance(done, str) else done.problem for done in answers]
            for problem in filter(None, problems):
                logger.warning("one that computes prompts has not changed yet: %s", problem)

    async def open_group(self, meeting: Meeting) -> int:
        """As `UpdateGroups.open`, on the nodes of all ranks."""
        nodes: list[set[str]] = await self._engines.ask("change", "nodes")
        if not nodes:
            raise _unavailable(NOBODY)
        return await self._engines.record.groups.open(meeting, set().union(*nodes))

    async def close_group(self, group_name: str) -> None:
        """As `UpdateGroups.close`."""
        await self._engines.record.groups.close(group_name)

    async def control(self, what: str, *arguments: Any) -> None:
        """All replicas that there are, and those that compute prompts for them; one that starts
        later is told before it answers. Raises Unavailable if one could not do it.
        """
        others = [] if self._computing is None else [self._computing.control(what, *arguments)]
        for problem in await asyncio.gather(self._control(what, *arguments), *others, return_exceptions=True):
            if problem is not None:
                raise problem

    async def _control(self, what: str, *arguments: Any) -> None:
        try:
            rest = await asyncio.to_thread(self._engines.record.rest.change, what, *arguments)
        except NoRecord as error:
            raise _unavailable(str(error)) from None
        answers = await self._engines.change("change", "control", rest, what, *arguments)
        problems = [done if isinstance(done, str) else done.problem for done in answers]
        if any(problems):
            raise _unavailable(f"Not every engine replica did this: {'; '.join(filter(None, problems))}")

    async def state(self) -> dict[str, bool]:
        """Whether any replica `is_paused`, and whether any `is_sleeping`; where there is none,
        whether the next one will be.
        """
        states = await self._engines.ask("change", "state")
        if states:
            return {name: any(state[name] for state in states) for name in ("is_paused", "is_sleeping")}
        try:
            rest = await asyncio.to_thread(self._engines.record.rest.read)
        except NoRecord as error:
            raise _unavailable(str(error)) from None
        return {"is_paused": rest.pause is not None, "is_sleeping": rest.sleep_level > 0}

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """To be called about once a second: replicas that have older weights than the last ones of
        this gateway, because they have just started, are given these. Those that another gateway
        was given are learned, since that one may end.
        """
        numbers = [report.weights_number for report in self._reports()]
        if not self._turn.locked() and numbers and (min(numbers) < self._number or max(numbers) > self._number):
            spawn(self._catch_up())

    async def _catch_up(self) -> None:
        if self._turn.locked():
            return
        async with self._turn:
            try:
                if any(report.weights_number > self._number for report in self._reports()):
                    await self._learn()
                if not any(report.weights_number < self._number for report in self._reports()):
                    return
                await self._engines.change("change", "update", self._number, self._weights, "wait")
            except (NoRecord, Unavailable) as error:
                logger.warning("a replica may have older weights than the others: %s", error)

    async def _learn(self) -> None:
        """The weights of the last change, of the replicas that have them. Raises NoRecord,
        Unavailable.
        """
        last = await asyncio.to_thread(self._engines.record.read)
        if last.number <= self._number:
            return
        weights = [weights for number, weights in await self._engines.ask("change", "current") if number == last.number]
        if weights:
            self._number, self._weights = last.number, weights[0]

    async def _claim(self) -> int:
        highest = max((report.weights_number for report in self._reports()), default=0)
        try:
            return await asyncio.to_thread(self._engines.record.claim, max(highest, self._number) + 1)
        except NoRecord as error:
            raise _unavailable(str(error)) from None

    async def _write(self, number: int, weights: Weights | None) -> None:
        """From now on it is the change that every replica should have. Raises Unavailable, also
        where a later one is already.
        """
        try:
            is_last = await asyncio.to_thread(self._engines.record.write, number, weights)
        except NoRecord as error:
            raise _unavailable(str(error)) from None
        if not is_last:
            raise _unavailable(LATE)
        self._number, self._weights = number, weights

    async def _change_back(self) -> None:
        """Replicas that have changed, or were to, get the weights from before, as a new change."""
        try:
            before = await asyncio.to_thread(self._engines.record.read)
            weights = before.weights
            if before.are_elsewhere:
                await self._learn()  # of a replica that has refused
                if before.number != self._number:
                    logger.error("the weights from before, of version %s, are not known here", before.version)
                    return
                weights = self._weights
            number = await self._claim()
            await self._engines.change("change", "update", number, weights, "wait")
            await self._write(number, weights)
        except (NoRecord, Unavailable) as error:
            logger.error("not every replica has the weights from before: %s", error)

    async def _until_all_have(self, number: int, weights: Weights) -> list[EngineReport]:
        """Also those that were started meanwhile. One that still starts looks for itself before it
        runs; it may be one that has no place. Raises Unavailable.
        """
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    reports = self._reports()
                    if any(report.weights_number > number for report in reports):
                        raise _unavailable(LATE)
                    if any(report.weights_number < number for report in reports):
                        await self._engines.change("change", "update", number, weights, "wait")
                    elif reports and await self._engines.num_running() == len(reports):
                        return reports
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            message = f"Not every engine replica had the weights of version {weights.version} within"
            raise _unavailable(f"{message} {self._patience:g} s") from None


def _unavailable(message: str) -> Unavailable:
    return Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
