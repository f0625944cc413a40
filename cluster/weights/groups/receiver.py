"""The member of update groups on one node: an actor that receives whole tensors and puts them into
Ray's object store, where the node's ranks read them.
"""

import importlib
import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from cluster.actors.lifetime import end_with
from cluster.weights.groups.messages import DEVICES, Group, Meeting, Offer, Received
from engine.errors import InvalidConfig, in_a_line

MAX_CONCURRENCY = 4  # calls: a group may be left while another call waits for a tensor


class Membership(NamedTuple):
    group: Group
    member: Future[Any]  # once all have come
    in_use: Lock


class Receiver:
    """In the groups that its gateways were asked for. A model's weights are here twice for a
    moment: those from before until no rank needs them any more.
    """

    def __init__(self, app_name: str) -> None:
        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._groups: dict[str, Membership] = {}  # by name
        self._numbers = itertools.count(1)
        self._leaving = Lock()  # a group, or coming into one in its place
        self._joining = ThreadPoolExecutor(MAX_CONCURRENCY, thread_name_prefix="joining")
        end_with(app_name)

    def join(self, meeting: Meeting, rank: int, size: int) -> None:
        """Begin to: the trainer, which is told the size by now, comes meanwhile."""
        self.leave(meeting.group_name)
        module: Any = importlib.import_module("engine.worker.weights.receiving")  # not above: it needs torch
        member = self._joining.submit(
            module.Member,
            meeting.host,
            meeting.port,
            meeting.group_name,
            rank,
            size,
            DEVICES[meeting.backend],
            meeting.seconds,
            ray.util.get_node_ip_address(),
        )
        with self._leaving:
            self._groups[meeting.group_name] = Membership(Group(size, next(self._numbers)), member, Lock())

    def leave(self, group_name: str, number: int | None = None) -> None:
        """Others of that group then get errors where they would wait for this one. `number`: only
        if it is in the group of that number.
        """
        with self._leaving:
            found = self._groups.get(group_name)
            if found is not None and number in (None, found.group.number):
                del self._groups[group_name]

    def group(self, group_name: str) -> Group | None:
        """Of that name, which it is in."""
        found = self._groups.get(group_name)
        return None if found is None else found.group

    def receive(self, offer: Offer, number: int) -> Received:
        """What the trainer broadcasts, all of it, in the group of that number. Leaves it if
        anything goes wrong.
        """
        group = self._groups.get(offer.group_name)
        if group is None or group.group.number != number:
            return Received(self._node_id, {}, "", "the group was closed meanwhile")
        if not group.in_use.acquire(blocking=False):  # two would each take some of the tensors
            return Received(self._node_id, {}, "", "another update in this group is under way")
        refs: dict[str, ObjectRef[Any]] = {}
        whole = sha256()
        try:
            for name, tensor, digest in group.member.result().receive(offer.tensors):
                refs[name] = ray.put(tensor)
                whole.update(f"{name} {digest} ".encode())
        except (InvalidConfig, RayError) as error:
            self.leave(offer.group_name, number)
            return Received(self._node_id, {}, "", in_a_line(error))
        finally:
            group.in_use.release()
        return Received(self._node_id, refs, whole.hexdigest())
