"""Whether a model's engines are paused or sleep: what their replicas were told last, and one that
starts later is told before it answers.
"""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cluster.head import store
from engine.frontend.intermission import TAGS, Mode


@dataclass(frozen=True, slots=True)
class Rest:
    """As of the call of that number; of none with 0, when engines are awake and run."""

    number: int = 0
    pause: Mode | None = None  # what became of the requests that ran; None: no pause
    sleep_level: int = 0  # 0: awake
    sleep: Mode = "abort"  # as `pause`
    awake: tuple[str, ...] = ()  # of TAGS, while others sleep

    def after(self, what: str, *arguments: Any) -> "Rest":
        """A method of `engine.frontend.controls.Controls`."""
        match what, arguments:
            case "pause", (mode,):
                rest = replace(self, pause=mode)
            case "resume", ():
                rest = replace(self, pause=None)
            case "sleep", (level, mode):
                rest = replace(self, sleep_level=max(level, self.sleep_level), sleep=mode, awake=())
            case "wake_up", (tags,):
                awake = {*self.awake, *(TAGS if tags is None else tags)}
                is_asleep = self.sleep_level > 0 and not awake.issuperset(TAGS)
                level, still = (self.sleep_level, tuple(sorted(awake))) if is_asleep else (0, ())
                rest = replace(self, sleep_level=level, awake=still)
            case _:
                raise AssertionError(f"{what} with {len(arguments)} arguments")
        return replace(rest, number=self.number + 1)

    def calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        """What puts an engine into this state, whatever state it is in."""
        pause = ("resume", ()) if self.pause is None else ("pause", (self.pause,))
        if not self.sleep_level:
            return [pause, ("wake_up", (None,))]
        sleep = ("sleep", (self.sleep_level, self.sleep))
        return [pause, sleep, ("wake_up", (self.awake,))] if self.awake else [pause, sleep]


RUNS = Rest()


class RestRecord:
    """Of one deployment of engines. Each call has a key of its own, which is written once: one of
    two at the same time follows the other. Methods block, and raise NoRecord.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix + b"/rest"

    def read(self) -> Rest:
        """After the last call."""
        rest = _decoded(store.read(self._prefix)) or RUNS  # or after one of the last
        while (later := _decoded(store.read(self._key(rest.number + 1)))) is not None:
            rest = later
        return rest

    def change(self, what: str, *arguments: Any) -> Rest:
        """What every replica of these engines is to be told, also one that is yet to start."""
        before = self.read()
        while not store.claim(self._key(before.number + 1), msgspec.json.encode(before.after(what, *arguments))):
            before = self.read()
        rest = before.after(what, *arguments)
        store.write(self._prefix, msgspec.json.encode(rest))
        store.delete(self._key(rest.number - store.KEPT))
        return rest

    def _key(self, number: int) -> bytes:
        return self._prefix + f"/{number}".encode()


def _decoded(value: bytes | None) -> Rest | None:
    return None if value is None else msgspec.json.decode(value, type=Rest)
