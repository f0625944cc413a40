"""Who may come in, by what the engines report and by what the gateway knows itself."""

import itertools
import math
import random
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest

from cluster.api.errors import ApiError
from cluster.api.service import Arriving
from cluster.gateway import door as module
from cluster.gateway.door import Door, _DrainRate
from cluster.gateway.requests.journals import Journals
from cluster.replica.delta_channel.messages import EngineReport
from engine.admission.queue_limits import NOTHING, Load, QueueLimits
from engine.errors import Overloaded
from engine.outputs import CompletionOutput, RequestOutput
from engine.records.stats import EngineStats
from engine.request import NO_KEY, Request, Resume, Share
from engine.sampling_params import SamplingParams

STATS = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))
ONE = Load(1, 10)


def report(name: str = "one", **stats: int) -> EngineReport:
    """Of an engine with two places, for which three requests of 100 tokens may wait."""
    limits = QueueLimits(Load(3, 100), num_places=2, block_size=16)
    return EngineReport(name, "node", 1, None, replace(STATS, **stats), limits=limits)


def full(name: str = "one", **stats: int) -> EngineReport:
    return report(name, **{"num_seqs_running": 2, "num_seqs_waiting": 3, "num_waiting_tokens": 30} | stats)


class Engines:
    def __init__(self, *reports: EngineReport, max_queue_seconds: float = 0) -> None:
        self.reports = list(reports)
        self.journals = Journals()
        self.door = Door(self.journals, lambda: self.reports, max_queue_seconds)

    def is_open(self, more: Load = ONE) -> bool:
        try:
            self.door.check_room(more, None)
        except Overloaded:
            return False
        return True


def request(num_tokens: int = 10, resume: Resume = Resume()) -> Request:  # noqa: B008  # frozen
    return Request("r", [1] * num_tokens, SamplingParams(), resume=resume)


def test_what_an_engine_takes_over_is_nobodys_queue() -> None:
    """Streams of an engine that was lost wait in the next one, and shut out no new request."""
    assert not Engines(full()).is_open()
    taken_over = {"num_seqs_running": 0, "num_seqs_returning": 3, "num_returning_tokens": 30}
    assert Engines(full(**taken_over)).is_open()
    assert not Engines(full(**taken_over | {"num_seqs_waiting": 6, "num_waiting_tokens": 60})).is_open()


def test_what_arrives_counts_as_what_waits() -> None:
    door = Engines(report()).door  # two places are free, and three may wait
    for num, is_open in ((4, True), (5, False)):
        with nullcontext() if is_open else pytest.raises(Overloaded, match=r"5 sequences wait already"):
            door.check_room(ONE, None, arriving=Arriving(Load(num, 10 * num)))


def test_before_the_first_report_everybody_may_come_in() -> None:
    assert Engines().is_open(Load(10_000, 10**9))


def test_a_refusal_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Engines(full(), max_queue_seconds=0.3)
    five_a_second(slow, monkeypatch)
    slow.reports = [full(num_seqs_waiting=2, num_seqs_finished=50)]  # 0.4 s of the queue
    few = Engines(report())
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(few.journals.open(request()))
        for engines, seconds, limit in (
            (Engines(full()), None, "max_num_queued_reqs"),
            (few, None, "max_num_queued_reqs"),
            (Engines(full(num_seqs_waiting=2, num_waiting_tokens=95)), None, "max_num_queued_tokens"),
            (slow, None, "max_queue_seconds"),
            (slow, 0.35, "timeout"),
        ):
            with pytest.raises(Overloaded) as raised:
                engines.door.check_room(ONE, seconds)
            assert raised.value.limit == limit


def test_free_cache_is_no_room_for_those_that_find_no_place() -> None:
    busy = replace(full(num_seqs_waiting=2, num_waiting_tokens=80), limits=QueueLimits(Load(20, 100), 2, 16))
    engines = Engines(replace(busy, stats=replace(busy.stats, num_free_gpu_blocks=1000)))
    engines.door.check_room(Load(1, 20), None)
    for share in (NO_KEY, Share("key")):
        with pytest.raises(Overloaded, match="max_num_queued_tokens"):
            engines.door.check_room(Load(1, 21), None, share)
    assert engines.door.room(NOTHING) == (pytest.approx(20 / 40), 2.0, "max_num_queued_tokens")


def test_what_the_engines_report_counts() -> None:
    assert not Engines(full()).is_open()
    assert Engines(full(num_seqs_waiting=2)).is_open()
    assert not Engines(full(num_seqs_waiting=2, num_waiting_tokens=95)).is_open()
    assert Engines(full(), report("two")).is_open()
    assert not Engines(full(), full("two")).is_open()


def test_a_replica_that_is_lost_does_not_open_the_door() -> None:
    engines = Engines(full())
    assert not engines.is_open()
    engines.reports = []
    assert not engines.is_open()


def test_what_has_been_put_to_the_engines_counts_before_they_report_it() -> None:
    engines = Engines(report())  # with two free places
    with ExitStack() as stack:
        journals = [stack.enter_context(engines.journals.open(request())) for _ in range(5)]
        assert not engines.is_open()
        delta = RequestOutput(journals[0].request.id, 0, [1], [CompletionOutput(0, "x", [5])], finished=False)
        engines.journals.accept([delta], "connection")
        assert engines.journals.waiting.load == Load(4, 40)
        assert not engines.is_open()  # what the engine holds, running and waiting, has a limit too
        engines.journals.accept([delta], "connection")
        assert engines.journals.waiting.load == Load(4, 40)
    assert engines.is_open() and engines.journals.waiting.load == Load(0, 0)


def test_each_choice_of_a_request_takes_a_place() -> None:
    engines = Engines(report())  # two places are free, and three may wait
    four = replace(request(), params=SamplingParams(n=4))
    with engines.journals.open(four) as journal:
        assert engines.journals.waiting.load == Load(4, 10) and len(engines.journals.waiting) == 1
        assert engines.is_open() and not engines.is_open(Load(2, 10))
        engines.reports = [full(num_seqs_waiting=2)]
        assert not engines.is_open(Load(2, 10))
        ended = [CompletionOutput(index, "x", [5], finish_reason="stop") for index in range(3)]
        for _ in range(2):  # told twice, it counts once
            delta = RequestOutput(journal.request.id, 0, [1], list(ended), finished=False)
            engines.journals.accept([delta], "connection")
            assert engines.journals.num_seqs == 1
    assert engines.journals.num_seqs == 0


def test_choices_that_find_a_place_do_not_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one computes the prompt."""
    engines = Engines(full())
    five_a_second(engines, monkeypatch)
    with_limits(engines, num_seqs_finished=45)
    (busy,) = engines.reports
    engines.reports = [replace(busy, stats=replace(busy.stats, num_seqs_running=1, num_seqs_waiting=127))]
    engines.door.check_room(ONE, 1.0)
    engines.reports = [replace(busy, stats=replace(busy.stats, num_seqs_waiting=127))]
    with pytest.raises(Overloaded, match="timeout=1"):
        engines.door.check_room(ONE, 1.0)


def test_whoever_has_a_place_does_not_queue_while_its_prompt_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(report(), max_queue_seconds=0.3)
    five_a_second(engines, monkeypatch)
    begun = {"num_seqs_beginning": 2, "num_beginning_tokens": 20}
    engines.reports = [report(num_seqs_running=2, num_seqs_finished=45, **begun)]
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(engines.journals.open(request()))
        assert engines.is_open()
        with pytest.raises(Overloaded, match=r"timeout=0\.1"):
            stack.enter_context(engines.journals.open(request()))
            engines.door.check_room(ONE, 0.1)
        engines.reports = [report(num_seqs_running=2, num_seqs_waiting=1, num_waiting_tokens=10, **begun)]
        assert engines.is_open()
        for _ in range(2):  # three wait, and as many may
            stack.enter_context(engines.journals.open(request()))
        assert not engines.is_open()


def test_the_drain_rate_is_not_measured_while_nobody_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a prompt takes: it would be that of requests that came one by one."""
    engines, now = Engines(), 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(engines.journals.open(request()))
        for finished in range(20):
            begun = {"num_seqs_running": 2, "num_seqs_beginning": 2, "num_beginning_tokens": 20}
            engines.reports = [report(num_seqs_finished=finished, **begun)]
            engines.door.look()
            now += 1.0
        engines.door.check_room(Load(3, 30), 0.001)  # seconds: it is not known what the queue takes


def test_no_key_fills_the_queue() -> None:
    engines = Engines(full(num_seqs_running=2, num_seqs_waiting=0, num_waiting_tokens=0))
    engines.reports[0] = replace(engines.reports[0], limits=QueueLimits(Load(20, 900), num_places=2, block_size=16))
    with ExitStack() as stack:
        for _ in range(16):
            engines.door.check_room(ONE, None, Share("greedy"))
            stack.enter_context(engines.journals.open(replace(request(), share=Share("greedy"))))
        with pytest.raises(ApiError) as raised:
            engines.door.check_room(ONE, None, Share("greedy"))
        assert (raised.value.status, raised.value.code) == (429, "rate_limit_exceeded")
        engines.door.check_room(ONE, None, Share("modest"))
        engines.door.check_room(ONE, None, Share("heavy", weight=2.0))
        engines.door.check_room(ONE, None)
    assert engines.journals.waiting.of("greedy") == NOTHING


def fill(engines: Engines, stack: ExitStack, share: Share, num_tokens: int = 10) -> int:
    """Have a key send requests until it is refused; how many came in."""
    for num in range(1000):
        try:
            engines.door.check_room(Load(1, num_tokens), None, share)
        except ApiError as error:
            assert (error.status, error.code) == (429, "rate_limit_exceeded")
            return num
        stack.enter_context(engines.journals.open(replace(request(num_tokens), share=share)))
    raise AssertionError("it is never refused")


def with_limits(engines: Engines, **stats: int) -> None:
    """An engine whose 256 places are taken, for which 256 requests of 131,072 tokens may wait."""
    limits = QueueLimits(Load(256, 131_072), num_places=256, block_size=16)
    engines.reports = [replace(report(num_seqs_running=256, **stats), limits=limits)]


def test_no_key_fills_the_seconds_that_may_be_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(max_queue_seconds=10)
    five_a_second(engines, monkeypatch)
    with_limits(engines, num_seqs_finished=45)
    with ExitStack() as stack:
        assert fill(engines, stack, Share("greedy")) in (39, 40)  # of 50, as measured
        assert fill(engines, stack, Share("modest")) == 16, "a third of them: it is served in turn"
        with pytest.raises(ApiError):
            engines.door.check_room(ONE, None, Share("greedy"))
        engines.door.check_room(ONE, None, Share("third"))
        engines.door.check_room(ONE, None, Share("modest"), is_let_in=True)  # the limit is one of those who come


def test_an_engine_that_becomes_slower_is_full_for_those_that_filled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(max_queue_seconds=10)
    five_a_second(engines, monkeypatch)
    with_limits(engines, num_seqs_finished=45)
    modest = Share("modest")
    with ExitStack() as stack:
        assert fill(engines, stack, Share("greedy")) in (39, 40)
        monkeypatch.setattr(module.time, "monotonic", itertools.count(110.0).__next__)
        for num in range(8):
            with_limits(engines, num_seqs_finished=45 + 2 * num, num_seqs_waiting=40)
            engines.door.look()
        with pytest.raises(Overloaded, match=r"the queue takes about 1\d s"):
            engines.door.check_room(ONE, None)
        engines.door.check_room(ONE, 5.0, modest)
        assert fill(engines, stack, modest) > 8
        with pytest.raises(ApiError):
            engines.door.check_room(ONE, None, Share("greedy"))
        room, room_by_key = engines.door.room(NOTHING), engines.door.room(NOTHING, by_key=True)
        assert room is not None and room.num_requests < 0, "what HAProxy would be told of one key"
        assert room_by_key is None


def test_no_key_fills_the_queue_with_tokens() -> None:
    engines = Engines()
    with_limits(engines)
    with ExitStack() as stack:
        assert fill(engines, stack, Share("greedy"), 2000) == 52  # 104,000 tokens of 131,072
        engines.door.check_room(Load(1, 20_000), None, Share("modest"))
        with pytest.raises(ApiError):
            engines.door.check_room(Load(1, 2000), None, Share("greedy"))


def test_no_key_fills_the_queue_with_what_arrives() -> None:
    """As large bodies that come slowly."""
    engines = Engines()
    with_limits(engines)
    arriving = Load(205, 2050)
    with pytest.raises(ApiError):
        engines.door.check_room(ONE, None, Share("greedy"), Arriving(arriving, arriving))
    engines.door.check_room(ONE, None, Share("modest"), Arriving(arriving))


def test_free_places_count_as_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the engine is."""
    engines = Engines(max_queue_seconds=10)
    five_a_second(engines, monkeypatch)
    with_limits(engines, num_seqs_finished=45)
    (full,) = engines.reports
    engines.reports = [replace(full, stats=replace(full.stats, num_seqs_running=0, num_free_gpu_blocks=8192))]
    with ExitStack() as stack:
        assert 240 < fill(engines, stack, Share("only")) < 250  # four fifths of 256 places and of 50 that may wait


def test_a_request_with_tokens_waits_for_nothing() -> None:
    engines = Engines(report())
    with engines.journals.open(request(resume=Resume(output_ids=[[5]], fingerprint="fp"))):
        assert engines.journals.waiting.load == Load(0, 0)


def five_a_second(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """End requests for a while."""
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for finished in range(0, 50, 5):
        engines.reports = [full(num_seqs_finished=finished)]
        engines.door.look()
        now += 1.0


def test_the_queue_s_rate_says_when_to_come_again_and_who_cannot_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(full())
    five_a_second(engines, monkeypatch)
    with pytest.raises(Overloaded) as raised:
        engines.door.check_room(ONE, None)
    assert raised.value.retry_after == pytest.approx(3 / 5)
    engines.reports = [full(num_seqs_waiting=2, num_seqs_finished=50)]
    engines.door.check_room(ONE, 1.0)
    with pytest.raises(Overloaded, match=r"timeout=0.3"):
        engines.door.check_room(ONE, 0.3)


def test_who_would_wait_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(full(), max_queue_seconds=0.3)
    five_a_second(engines, monkeypatch)
    engines.reports = [full(num_seqs_waiting=2, num_seqs_finished=50)]
    with pytest.raises(Overloaded, match="max_queue_seconds") as raised:
        engines.door.check_room(ONE, None)
    assert raised.value.retry_after == pytest.approx(2 / 5)
    engines.door.check_room(ONE, None, is_let_in=True)
    engines.reports = [full(num_seqs_waiting=1, num_seqs_finished=50)]
    assert engines.is_open()


def test_what_was_let_in_stays_in_once_the_others_have_their_places() -> None:
    """Of five that were let in, two run and two wait. None has a token, so none has left the
    gateway's own count, but no place is free any more.
    """
    engines = Engines(full(num_seqs_waiting=2, num_waiting_tokens=20))
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(engines.journals.open(request()))
        assert not engines.is_open()
        engines.door.check_room(ONE, None, is_let_in=True)
        stack.enter_context(engines.journals.open(request()))
        with pytest.raises(Overloaded):
            engines.door.check_room(ONE, None, is_let_in=True)


BY_REQUESTS = "max_num_queued_reqs"


def test_the_room_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    assert engines.door.room(NOTHING) is None, "nothing is known"
    engines.reports = [full()]
    assert engines.door.room(NOTHING) == (0, 2.0, BY_REQUESTS), "no rate is known"
    five_a_second(engines, monkeypatch)
    assert engines.door.room(NOTHING) == (0, pytest.approx(3 / 5), BY_REQUESTS)
    engines.reports = [full(num_seqs_waiting=1, num_waiting_tokens=10)]
    assert engines.door.room(NOTHING) == (2, pytest.approx(1 / 5), BY_REQUESTS)
    assert engines.door.room(Load(3, 30)) == (0, pytest.approx(3 / 5), BY_REQUESTS), "they arrive"
    engines.reports = [full(num_seqs_waiting=2, num_waiting_tokens=90)]
    by_tokens = (pytest.approx(10 / 45), pytest.approx(2 / 5), "max_num_queued_tokens")
    assert engines.door.room(NOTHING) == by_tokens, "for a part of a prompt"
    engines.reports = [report()]
    assert engines.door.room(NOTHING) is None


def test_a_queue_without_limits_has_any_room() -> None:
    limits = QueueLimits(Load(math.inf, math.inf), num_places=2, block_size=16)
    engines = Engines(replace(full(), limits=limits))
    assert engines.door.room(NOTHING) is None


def test_a_limit_of_time_is_one_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(full(), max_queue_seconds=0.4)
    five_a_second(engines, monkeypatch)
    engines.reports = [full(num_seqs_waiting=1)]
    assert engines.door.room(NOTHING) == (pytest.approx(1), pytest.approx(1 / 5), "max_queue_seconds")


def test_what_is_open_takes_room_whatever_the_engines_report() -> None:
    engines = Engines(full(num_seqs_running=0, num_seqs_waiting=0, num_waiting_tokens=0))
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(engines.journals.open(request()))
        assert engines.door.room(NOTHING) == (1, 2.0, BY_REQUESTS)


def test_the_rate_is_measured_anew_when_replicas_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [replace(full(), problem="workers are restarting")], [replace(full(), is_frozen=True)]
    for other in ([], [full("new")], *others):
        engines = Engines(full(), max_queue_seconds=0.1)
        five_a_second(engines, monkeypatch)
        engines.reports = other
        engines.door.look()
        engines.reports = [full(num_seqs_waiting=2)]
        assert engines.is_open()


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_answers_that_end_together_do_not_make_the_queue_seem_fast_and_then_slow(spread: float) -> None:
    """64 places, 60 s an answer, of those that began together, more or less."""
    rate, chance, finished = _DrainRate(), random.Random(3), 0
    ends = [60.0] * 64
    for now in range(900):
        for place, end in enumerate(ends):
            if end <= now:
                finished += 1
                ends[place] = now + 60 * (1 + spread * chance.uniform(-0.5, 0.5))
        rate.look({"one": finished}, float(now), 64, is_queueing=True)
        seconds = rate.seconds_for(64)
        assert seconds is None if now < 60 else seconds is not None and 40 < seconds < 120


def test_an_engine_that_becomes_slower_is_noticed_while_its_places_are_given_once() -> None:
    rate, finished = _DrainRate(), 0.0
    for now in range(120):
        finished += 10 if now < 50 else 1
        rate.look({"one": int(finished)}, float(now), 20, is_queueing=True)
        if now == 49:
            assert rate.seconds_for(10) == pytest.approx(1.0, rel=0.05)
    assert rate.seconds_for(10) == pytest.approx(10.0, rel=0.25)


def test_a_pause_is_no_slow_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for its end as far as the queue has room."""
    engines = Engines(full(), max_queue_seconds=1)
    five_a_second(engines, monkeypatch)
    monkeypatch.setattr(module.time, "monotonic", itertools.count(200.0).__next__)
    engines.reports = [replace(full(num_seqs_waiting=2, num_seqs_finished=45), is_frozen=True)]
    for _ in range(100):
        engines.door.look()
        assert engines.is_open()
    engines.reports = [replace(report, is_frozen=False) for report in engines.reports]
    engines.door.look()
    assert engines.is_open()


def test_the_rate_of_an_idle_engine_is_not_what_it_could_do() -> None:
    engines = Engines(report())
    for finished in range(20):
        engines.reports = [report(num_seqs_finished=finished)]
        engines.door.look()
    engines.reports = [full(num_seqs_finished=20)]
    with pytest.raises(Overloaded) as raised:
        engines.door.check_room(ONE, 0.001)
    assert raised.value.retry_after is None
