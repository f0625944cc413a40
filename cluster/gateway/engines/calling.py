"""Which engine replica a request goes to, of those that are connected."""

import random
from collections.abc import Sequence
from dataclasses import replace

from cluster.gateway.engines.prefixes import Prefixes, beginnings_of
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.calls import MAX_UNSENT_BYTES, ChannelCall, OpenCalls
from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.delta_channel.server import DeltaServer
from cluster.replica.refusals.lost import EngineFull
from engine.kv_events.beginnings import PIECE_BYTES
from engine.request import Request

# Chosen by `python -m tests.benchmarks.routing.simulate`.
BYTES_PER_SEQ = 256  # of a prompt that a replica need not compute: worth one sequence more beside it
MORE_SEQS = 4  # than the least busy replica has are never too many for a prompt's sake, nor is
MORE_LOAD = 0.5  # this share of what that one has
MANY = 4  # replicas; of more, gateways that all looked for the least busy one would all find the same
NUM_DRAWN = 2


class Calling:
    """One gateway's."""

    def __init__(self, engines: Engines, server: DeltaServer, *, is_asked: bool = False) -> None:
        """`is_asked`: for `num_known`, which is to know of the only replica, too."""
        self._is_asked = is_asked
        self._engines = engines
        self._server = server
        self.prefixes = Prefixes()

    def begin(self, request: Request) -> ChannelCall | None:
        """Send the request to a replica; None if no connected one can take it. Those that stay are
        preferred, and those with the fingerprint of its tokens. A request without tokens goes to
        one with the newest weights. Of them, see `_best`. Raises EngineFull if all of these read
        nothing.
        """
        able = self._able(request)
        if not able:
            return None
        report, calls, beginnings, num_known = self._best(able, request)
        call = calls.begin(replace(request, beginnings=b"".join(beginnings)) if beginnings else request)
        if call is not None:
            self._engines.count_call(report.replica, 1)
            call.answer.add_done_callback(lambda _: self._engines.count_call(report.replica, -1))
            # At once, since others that begin so may come before its answer.
            self.prefixes.remember(beginnings, report.replica)
            if num_known < len(beginnings):
                call.when_refused(lambda: self.prefixes.forget(beginnings[num_known:], report.replica))
        return call

    def num_known(self, request: Request) -> int:
        """Pieces of the prompt that the replica is likely to have to which it would go now."""
        able = self._able(request)
        try:
            return self._best(able, request)[3] if able else 0
        except EngineFull:
            return 0

    def _able(self, request: Request) -> list[tuple[EngineReport, OpenCalls]]:
        """See `begin`."""
        known = self._server.calls()
        newest = max((report.weights_number for report, _ in known), default=0)
        able = [one for one in known if one[0].problem is None]
        able = [one for one in able if not one[0].is_leaving] or able
        wanted = request.resume.fingerprint
        if wanted is not None:
            return [one for one in able if one[0].fingerprint == wanted] or able
        return [one for one in able if one[0].weights_number == newest]

    def _best(
        self, able: Sequence[tuple[EngineReport, OpenCalls]], request: Request
    ) -> tuple[EngineReport, OpenCalls, list[bytes], int]:
        """The replica with the fewest sequences, where the part of the prompt that a replica has
        been sent before makes up for some; the prompt's beginnings, and how many of them it has
        been sent. Of many replicas, these are those that have been sent a part, and two that are
        drawn. Among equals, the one that this gateway has sent the fewest so far. With one replica
        there is nothing to choose, nor, unless anybody asks, to remember.
        """
        if len(able) == 1 and not self._is_asked:
            return *_ready(able)[0], [], 0
        beginnings = beginnings_of(request)
        pieces = self.prefixes.known(beginnings)
        if len(able) > MANY:
            few = [one for one in able if one[0].replica in pieces] + random.sample(able, NUM_DRAWN)
            able = [one for one in few if not one[1].is_full] or _ready(able)
        else:
            able = _ready(able)
        loads = [_load(report, calls) for report, calls in able]
        most = max(MORE_SEQS, int(min(loads) * MORE_LOAD))

        def burden(index: int) -> tuple[int, int, int]:
            report, calls = able[index]
            num_known = pieces.get(report.replica, 0)
            worth = min(num_known * PIECE_BYTES // BYTES_PER_SEQ, most)
            return loads[index] - worth, -num_known, calls.num_begun

        report, calls = able[min(range(len(able)), key=burden)]
        return report, calls, beginnings, pieces.get(report.replica, 0)


def _ready(able: Sequence[tuple[EngineReport, OpenCalls]]) -> list[tuple[EngineReport, OpenCalls]]:
    """Those that read what they are sent. Raises EngineFull."""
    ready = [one for one in able if not one[1].is_full]
    if not ready:
        raise EngineFull(f"{MAX_UNSENT_BYTES >> 20} MiB of requests wait to be read by it")
    return ready


def _load(report: EngineReport, calls: OpenCalls) -> int:
    """A replica's sequences: those that it last reported and those since, or this gateway's alone
    if they are more.
    """
    stats = report.stats
    reported = stats.num_seqs_running + stats.num_seqs_waiting + stats.num_seqs_swapped
    return max(calls.num_seqs, reported + calls.num_unreported)
