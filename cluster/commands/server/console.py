"""Prints on the console of `squadron serve` the events that engines report (lost ranks, and
requests that caused a loss), and while it starts, which replicas have no place in the Ray
cluster yet.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray import serve

from cluster.launch.config.engines import ENGINES, PREFILL_ENGINES
from cluster.serve_status import deployments_of
from cluster.workers.placement import free_resources
from engine.records.recorder import Event

POLL_SECONDS = 1.0
ANSWER_SECONDS = 5.0
_WAITING = re.compile(r" has (\d+) replicas that have taken .* to be scheduled\. .* each replica: (.*?), total ")


@contextlib.contextmanager
def told_events(app_name: str) -> Iterator[None]:
    """Within the context, each event of each engine replica of the application is printed to stderr
    within seconds.
    """
    engines = [each for kind in (ENGINES, PREFILL_ENGINES) for each in deployments_of(app_name, kind)]
    with _beside(_tell, engines):
        yield


@contextlib.contextmanager
def _beside(tell: Callable[[Any, threading.Event], None], about: Any) -> Iterator[None]:
    """Within the context, `tell` runs in a thread of its own, until its event is set."""
    has_ended = threading.Event()
    thread = threading.Thread(target=tell, args=(about, has_ended), name="console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join(2 * POLL_SECONDS)


def _tell(engines: Sequence[Any], has_ended: threading.Event) -> None:
    news = [News() for _ in engines]
    while not has_ended.wait(POLL_SECONDS) and ray.is_initialized():
        for those, known in zip(engines, news, strict=True):
            with contextlib.suppress(Exception):  # from Ray, of any kind, for a replica that is ending: asked again
                answers = those.broadcast("events").results(timeout_s=ANSWER_SECONDS, return_exceptions=True)
                for line in known.of(answers):
                    print(line, file=sys.stderr, flush=True)


class News:
    """Remembers what was printed, so that it is printed once."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}  # by replica, the number of its last printed event
        self._has_begun = False

    def of(self, answers: Sequence[tuple[str, Sequence[Event]] | BaseException]) -> list[str]:
        """The new lines; answers are each replica's name and events, or an exception if it is busy
        or ending.
        """
        lines = []
        told = dict(answer for answer in answers if not isinstance(answer, BaseException))
        for replica, events in told.items():
            if replica not in self._seen and self._has_begun:
                lines.append(f"engine replica {_short(replica)} is ready")
            lines += [event.text for event in events if event.number > self._seen.get(replica, 0)]
            self._seen[replica] = max((event.number for event in events), default=0)
        if len(told) == len(answers):
            lines += [f"engine replica {_short(gone)} is gone" for gone in self._seen.keys() - told.keys()]
            self._seen = {replica: self._seen[replica] for replica in told}
        self._has_begun = self._has_begun or bool(told)
        return lines


def _short(replica: str) -> str:
    """The distinguishing part of Serve's name of an actor."""
    return replica.rpartition("#")[2]


@contextlib.contextmanager
def told_waits(app_name: str) -> Iterator[None]:
    """Within the context, a line on stderr when Serve notices that replicas of a deployment wait,
    which it does after half a minute, and one whenever their number changes.
    """
    with _beside(_tell_waits, app_name):
        yield


def _tell_waits(app_name: str, has_ended: threading.Event) -> None:
    told: dict[str, str] = {}
    while not has_ended.wait(POLL_SECONDS):
        with contextlib.suppress(Exception):  # from Ray, of any kind, for a cluster that is lost: others report it
            application = serve.status().applications.get(app_name)
            for name, deployment in {} if application is None else application.deployments.items():
                if (found := _WAITING.search(deployment.message)) and told.get(name) != found[1]:
                    told[name] = found[1]
                    print(
                        f"{found[1]} replica(s) of {name} have no place in the Ray cluster yet: each needs {found[2]}; "
                        f"free are {free_resources()}",
                        file=sys.stderr,
                        flush=True,
                    )
