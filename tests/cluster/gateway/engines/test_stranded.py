"""Whether a request that is bound to a fingerprint can still be continued."""

from typing import Any

from cluster.gateway.engines import stranded
from cluster.gateway.engines.stranded import Stranded
from cluster.replica.delta_channel.messages import EngineReport
from tests.cluster.gateway.test_door import STATS


def report(fingerprint: str) -> EngineReport:
    return EngineReport(fingerprint, "node", 1, None, STATS, fingerprint=fingerprint)


class Engines:
    """Says what Serve's controller would."""

    def __init__(self, settled: int | None) -> None:
        self.settled = settled
        self.num_asked = 0

    async def num_settled(self) -> int | None:
        self.num_asked += 1
        return self.settled


async def is_stranded(fingerprint: str, *connected: str, settled: int | None) -> bool:
    engines: Any = Engines(settled)
    return await Stranded(engines, lambda: [report(name) for name in connected]).is_stranded(fingerprint)


async def test_only_where_all_that_run_are_known_and_compute_otherwise() -> None:
    assert await is_stranded("fp_one", "fp_two", "fp_three", settled=2)
    assert not await is_stranded("fp_one", "fp_two", "fp_one", settled=2)
    assert not await is_stranded("fp_one", "fp_two", settled=2)  # one runs that has not reported yet
    assert not await is_stranded("fp_one", "fp_two", settled=None)  # one starts, or nobody tells


async def test_many_requests_ask_once(monkeypatch: Any) -> None:
    engines: Any = Engines(1)
    one = Stranded(engines, lambda: [report("fp_two")])
    assert [await one.is_stranded(name) for name in ("fp_one", "fp_three", "fp_two")] == [True, True, False]
    assert engines.num_asked == 1
    monkeypatch.setattr(stranded, "ANSWER_SECONDS", -1.0)
    assert await one.is_stranded("fp_one") and engines.num_asked == 2
