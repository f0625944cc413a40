"""When the end of a request whose blocks another engine waits for is told."""

from engine.admission.handing_over import HandingOver
from engine.outputs import RequestOutput
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.tiers.host_tier import HostTier


def make_tier() -> HostTier:
    return HostTier(BlockPool(9, first=1), BlockPool(4), None)


def end(number: int, error: str | None = None) -> RequestOutput:
    return RequestOutput(str(number), 0, [], [], finished=True, error=error)


def test_an_end_is_told_once_what_was_written_before_it_is_stored() -> None:
    tier, handing_over = make_tier(), HandingOver(holds=True)
    tier.num_written = 3
    assert handing_over.hold([one := end(1)], tier, is_over=False) == []
    tier.num_written = 5
    handing_over.stored(2)
    assert handing_over.hold([two := end(2)], tier, is_over=False) == []
    handing_over.stored(4)
    assert handing_over.hold([], tier, is_over=False) == [one]
    handing_over.stored(5)
    assert handing_over.hold([], tier, is_over=False) == [two]


def test_what_has_not_ended_and_what_has_failed_waits_for_nothing() -> None:
    tier, handing_over = make_tier(), HandingOver(holds=True)
    tier.num_written = 3
    taken, failed = RequestOutput("1", 0, [], [], finished=False), end(2, "it is too long")
    assert handing_over.hold([taken, failed], tier, is_over=False) == [taken, failed]


def test_an_end_is_told_when_nothing_more_is_stored_and_when_the_cache_is_lost() -> None:
    tier, handing_over = make_tier(), HandingOver(holds=True)
    tier.num_written = 3
    assert handing_over.hold([one := end(1)], tier, is_over=True) == [one]
    assert handing_over.hold([two := end(2)], tier, is_over=False) == []
    assert handing_over.hold([], make_tier(), is_over=False) == [two]
    tier.num_written = 4
    assert handing_over.hold([three := end(3)], tier, is_over=False) == []
    assert handing_over.give_up() == [three] and handing_over.give_up() == []
