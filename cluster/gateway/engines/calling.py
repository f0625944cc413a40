"""Which engine replica a request goes to, of those that are connected."""

from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.calls import ChannelCall, OpenCalls
from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.delta_channel.server import DeltaServer
from engine.request import Request


class Calling:
    """One gateway's."""

    def __init__(self, engines: Engines, server: DeltaServer) -> None:
        self._engines = engines
        self._server = server

    def begin(self, request: Request) -> ChannelCall | None:
        """Send the request to the replica with the fewest requests; None if no connected one can
        take it. Preferred are those that stay, and those with the fingerprint of its tokens.
        """
        able = [(report, calls) for report, calls in self._server.calls() if report.problem is None]
        able = [(report, calls) for report, calls in able if not report.is_leaving] or able
        wanted = request.resume.fingerprint
        if wanted is not None:
            able = [(report, calls) for report, calls in able if report.fingerprint == wanted] or able
        if not able:
            return None
        report, calls = min(able, key=lambda one: _load(*one))
        call = calls.begin(request)
        if call is not None:
            self._engines.count_call(report.replica, 1)
            call.answer.add_done_callback(lambda _: self._engines.count_call(report.replica, -1))
        return call


def _load(report: EngineReport, calls: OpenCalls) -> tuple[int, int]:
    """A replica's: its requests, of all gateways when it last reported, or of this one now if they
    are more; among equals, those that this gateway has sent it so far.
    """
    reported = report.stats.num_requests_running + report.stats.num_requests_waiting
    return max(len(calls), reported), calls.num_begun
