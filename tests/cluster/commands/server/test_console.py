"""What the console is told of engine replicas' answers: everything once."""

from cluster.commands.server.console import News
from engine.records.recorder import NUM_EVENTS_KEPT, Event, Recorder

ONE, TWO = "SERVE_REPLICA::squadron#EngineDeployment#one", "SERVE_REPLICA::squadron#EngineDeployment#two"


def test_events_are_told_once() -> None:
    news = News()
    first, second = Event(1, "rank 0 lost"), Event(2, "rank 1 lost")
    assert news.of([(ONE, ())]) == []
    assert news.of([(ONE, (first,))]) == ["rank 0 lost"]
    assert news.of([(ONE, (first, second))]) == ["rank 1 lost"]
    assert news.of([(ONE, (first, second))]) == []


def test_replicas_that_come_and_go_are_told() -> None:
    news = News()
    assert news.of([]) == []
    assert news.of([(ONE, ())]) == []  # the first ones: the command has told that it is ready
    assert news.of([]) == ["engine replica one is gone"]
    assert news.of([]) == []
    assert news.of([(TWO, (Event(1, "rank 0 lost"),))]) == ["engine replica two is ready", "rank 0 lost"]


def test_a_replica_that_does_not_answer_is_not_called_gone() -> None:
    news = News()
    assert news.of([(ONE, ()), (TWO, ())]) == []
    assert news.of([(ONE, ()), TimeoutError()]) == []
    assert news.of([(ONE, ())]) == ["engine replica two is gone"]


def test_the_recorder_keeps_the_last_events_by_number() -> None:
    recorder = Recorder()
    for number in range(1, NUM_EVENTS_KEPT + 3):
        recorder.tell(f"event {number}")
    assert len(recorder.events) == NUM_EVENTS_KEPT
    assert recorder.events[-1] == Event(NUM_EVENTS_KEPT + 2, f"event {NUM_EVENTS_KEPT + 2}")
