"""Which engine replica a request goes to, of those that are connected."""

from collections.abc import Sequence

from cluster.gateway.engines.prefixes import PIECE_BYTES, Prefixes, beginnings_of
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.calls import MAX_UNSENT_BYTES, ChannelCall, OpenCalls
from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.delta_channel.server import DeltaServer
from cluster.replica.refusals.lost import EngineFull
from engine.request import Request

BYTES_PER_REQUEST = 1024  # of a prompt that a replica need not compute: worth one request more beside it
MORE_REQUESTS = 4  # than the least busy replica has are never too many for a prompt's sake, nor is
MORE_LOAD = 0.25  # this share of what that one has


class Calling:
    """One gateway's."""

    def __init__(self, engines: Engines, server: DeltaServer) -> None:
        self._engines = engines
        self._server = server
        self._prefixes = Prefixes()

    def begin(self, request: Request) -> ChannelCall | None:
        """Send the request to a replica; None if no connected one can take it. Those that stay are
        preferred, and those with the fingerprint of its tokens. A request without tokens goes to
        one with the newest weights. Of them, see `_best`. Raises EngineFull if all of these read
        nothing.
        """
        known = self._server.calls()
        newest = max((report.weights_number for report, _ in known), default=0)
        able = [(report, calls) for report, calls in known if report.problem is None]
        able = [(report, calls) for report, calls in able if not report.is_leaving] or able
        wanted = request.resume.fingerprint
        if wanted is not None:
            able = [(report, calls) for report, calls in able if report.fingerprint == wanted] or able
        else:
            able = [(report, calls) for report, calls in able if report.weights_number == newest]
        if not able:
            return None
        able = [(report, calls) for report, calls in able if not calls.is_full]
        if not able:
            raise EngineFull(f"{MAX_UNSENT_BYTES >> 20} MiB of requests wait to be read by it")
        report, calls = self._best(able, request)
        call = calls.begin(request)
        if call is not None:
            self._engines.count_call(report.replica, 1)
            call.answer.add_done_callback(lambda _: self._engines.count_call(report.replica, -1))
        return call

    def _best(self, able: Sequence[tuple[EngineReport, OpenCalls]], request: Request) -> tuple[EngineReport, OpenCalls]:
        """The replica with the fewest requests, where the part of the prompt that a replica has
        been sent before makes up for some. With one replica there is nothing to choose, nor to
        remember.
        """
        if len(able) == 1:
            return able[0]
        beginnings = beginnings_of(request)
        pieces = self._prefixes.known(beginnings)
        fewest, _ = min(_load(*one) for one in able)
        most = max(MORE_REQUESTS, int(fewest * MORE_LOAD))

        def burden(one: tuple[EngineReport, OpenCalls]) -> tuple[int, int, int]:
            num_known = pieces.get(one[0].replica, 0)
            num_requests, num_begun = _load(*one)
            return num_requests - min(num_known * PIECE_BYTES // BYTES_PER_REQUEST, most), -num_known, num_begun

        best = min(able, key=burden)
        self._prefixes.remember(beginnings, best[0].replica)
        return best


def _load(report: EngineReport, calls: OpenCalls) -> tuple[int, int]:
    """A replica's: its requests, of all gateways when it last reported, or of this one now if they
    are more; among equals, those that this gateway has sent it so far.
    """
    reported = report.stats.num_requests_running + report.stats.num_requests_waiting
    return max(len(calls), reported), calls.num_begun
