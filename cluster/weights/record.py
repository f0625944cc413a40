"""Which weights the engine replicas of a model should have, as whoever changed them wrote it
down.
"""

import contextlib
from dataclasses import dataclass, replace

import msgspec
from ray import serve

from cluster.head import runs, store
from cluster.weights.groups.update_groups import UpdateGroups
from cluster.weights.rest import RestRecord
from engine.checkpoint.sample import weights_digest
from engine.errors import InvalidConfig
from engine.executor import Weights


@dataclass(frozen=True, slots=True)
class Change:
    """The last one. `weights`: None: the model's own, or such as `are_elsewhere`: objects in Ray's
    store, which only processes have that were told of them, or a folder that is not here any more.
    """

    number: int = 0  # 0: there was none
    weights: Weights | None = None
    version: str | None = None
    are_elsewhere: bool = False


NONE = Change()


class WeightsRecord:
    """Of one deployment of engines. Methods block, and raise NoRecord."""

    def __init__(self, app_name: str, deployment: str, run: str, source: str) -> None:
        """`run`: of the application (`cluster.head.runs`); `source`: where the model's own weights
        are from. Those of another one, under the same name, are others.
        """
        self.groups = UpdateGroups(app_name, deployment)  # in which trainers give them other weights
        self._prefix = f"{runs.place('weights', app_name, run)}{deployment}/{store.digest(source)}".encode()
        self.rest = RestRecord(self._prefix)

    def read(self) -> Change:
        change = _decoded(store.read(self._prefix)) or NONE  # or one of the last: see `write`
        number = change.number
        while (later := store.read(self._key(number := number + 1))) is not None:
            change = _decoded(later) or change
        return change

    def write(self, number: int, weights: Weights | None) -> bool:
        """Every replica of these engines should have these, also one that is yet to start. False,
        and nothing is written, if a later change has been. Of two that are written at once the
        later counts: each is under its own number, too.
        """
        if self.read().number > number:
            return False
        are_objects = weights is not None and weights.folder is None
        version = None if weights is None else weights.version
        change = Change(number, None if are_objects else weights, version, are_elsewhere=are_objects)
        value = msgspec.json.encode(change)
        store.write(self._key(number), value)
        store.write(self._prefix, value)
        store.delete(self._key(number - store.KEPT))
        return True

    def claim(self, at_least: int) -> int:
        """A number for a change, higher than those before, that nobody else gets."""
        number = max(at_least, self.read().number + 1)  # keys of earlier ones are gone
        while not store.claim(self._key(number)):
            number += 1
        return number

    def _key(self, number: int) -> bytes:
        """Empty as long as the number is only claimed."""
        return self._prefix + f"/{number}".encode()


def _decoded(value: bytes | None) -> Change | None:
    return msgspec.json.decode(value, type=Change) if value else None


def last_change(record: WeightsRecord) -> Change:
    """What it says, for a replica that starts here. Raises NoRecord."""
    change = record.read()
    weights = change.weights
    if weights is None or weights.folder is None:
        return change
    with contextlib.suppress(OSError, InvalidConfig):
        if weights_digest(weights.folder) == weights.sample:
            return change
    return replace(change, weights=None, are_elsewhere=True)


def own_record(token: str, source: str) -> WeightsRecord:
    """That of this process' Serve replica. `token`: of the owner of its deploy; `source`: see
    `WeightsRecord`. Raises NoRecord.
    """
    me = serve.get_replica_context()
    return WeightsRecord(me.app_name, me.deployment, runs.run_of(me.app_name, token), source)
