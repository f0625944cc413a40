"""Decides how often a gateway retries a request whose engine replica was lost, and how long the
request waits.

Most losses have nothing to do with the request, and a stream may survive many. Only consecutive
losses are counted, of replicas that had taken the request and were lost before it got a token. A
request that kills every replica that takes it has such losses, and so have the requests that ran
beside it. So only one request of the gateway makes its last attempt at a time: if it merely ran
beside the culprit, it gets a token and is no longer suspected; the culprit is quarantined. If a
replica rejects a request, hands it back or ends before it took it, the loss is not counted; a time
limit applies instead.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cluster.gateway.requests.journal import Journal
from cluster.replica.refusals.lost import EngineFull, EngineLost, OtherArithmetic, RequestMoved
from engine.errors import EngineDead, FingerprintChanged, RequestQuarantined

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between attempts that no replica took


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """One gateway's, for all of its requests."""

    max_attempts: int  # 1: no other attempt, and no quarantine: the first loss or refusal is told
    patience: float  # seconds that a request waits for a replica that can go on with it
    last_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a last attempt, until a token comes


class Attempts:
    """One request's."""

    def __init__(self, journal: Journal, limits: AttemptLimits) -> None:
        self._journal = journal
        self._max_attempts = limits.max_attempts
        self._patience = limits.patience
        self._last_turn = limits.last_turn
        self._has_turn = False
        self._is_foreign = False  # to the last replica that was asked
        self._num_lost = 0  # consecutively, without a token in between
        self._pause = FIRST_PAUSE
        self._waits_since = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """An attempt, from before its call to its end; if the replica is lost, until the journal is
        ready for the next one.

        Raises EngineDead, FingerprintChanged or RequestQuarantined if there is none.
        """
        self._journal.raise_if_ended()
        if self._is_last:
            await self._take_turn()
            self._waits_since = asyncio.get_running_loop().time()
        timer = asyncio.get_running_loop().call_at(self._waits_since + self._patience, self._give_up)
        loss: EngineLost | None = None
        try:
            yield
        except EngineLost as lost:
            loss = lost
        finally:
            timer.cancel()
            self._give_turn_back()
        if loss is not None:
            await self._rest_after(loss)
            self._journal.next_attempt(is_suspect=self._num_lost > 0, blocks_at=loss.blocks_at)

    def gained(self) -> None:
        """The replica has sent something."""
        self._give_turn_back()

    async def _rest_after(self, lost: EngineLost) -> None:
        journal = self._journal
        self._is_foreign = isinstance(lost, OtherArithmetic)
        if self._max_attempts == 1 and not isinstance(lost, RequestMoved):
            raise EngineDead(f"the engine was lost and is restarting: {lost.reason}") from lost
        if journal.source is not None and not isinstance(lost, RequestMoved):
            self._num_lost = 0 if journal.has_gained else self._num_lost + 1
            if self._num_lost == self._max_attempts:
                raise RequestQuarantined(
                    f"{self._num_lost} consecutive engine replicas were lost before this request got a token, the last "
                    f"one without another suspect on it: {lost.reason}"
                ) from lost
        now = asyncio.get_running_loop().time()
        if journal.source is not None and not isinstance(lost, EngineFull):
            self._pause = FIRST_PAUSE
            self._waits_since = now
        elif now > self._waits_since + self._patience:
            raise self._out_of_patience(lost.reason) from lost
        await journal.rest(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @property
    def _is_last(self) -> bool:
        return 0 < self._num_lost == self._max_attempts - 1

    async def _take_turn(self) -> None:
        """A request that is ended meanwhile needs none."""
        journal = self._journal
        taking = asyncio.create_task(self._last_turn.acquire())
        resting = asyncio.create_task(journal.rest(min(self._patience, journal.seconds_left)))
        try:
            await asyncio.wait((taking, resting), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not taking.cancel():
                self._last_turn.release()
            raise
        finally:
            resting.cancel()
        self._has_turn = not taking.cancel()
        if not self._has_turn:
            journal.raise_if_ended()
            if not journal.is_over:
                raise self._out_of_patience("other requests are making their last attempt")

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._last_turn.release()

    def _give_up(self) -> None:
        if self._journal.source is None:
            self._journal.fail(self._out_of_patience("no replica answered"))

    def _out_of_patience(self, reason: str) -> EngineDead | FingerprintChanged:
        if self._is_foreign:
            return FingerprintChanged(
                f"no engine replica with the fingerprint of the request's tokens was available within "
                f"{self._patience:.0f} s: {reason}",
                is_final=False,
            )
        return EngineDead(f"no engine replica took the request within {self._patience:.0f} s: {reason}")
