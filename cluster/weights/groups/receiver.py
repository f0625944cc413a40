"""The member of update groups on one node: an actor that receives whole tensors and puts them into
Ray's object store, where the node's ranks read them.
"""

import importlib
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from cluster.actors.lifetime import end_with
from cluster.weights.groups.messages import DEVICES, Meeting, Offer, Received
from engine.errors import InvalidConfig, in_a_line

MAX_CONCURRENCY = 4  # calls: a group may be left while another call waits for a tensor


class Membership(NamedTuple):
    size: int  # of the group
    member: Future[Any]  # once all have come
    in_use: Lock


class Receiver:
    """In the groups that its gateways were asked for. A model's weights are here twice for a
    moment: those from before until no rank needs them any more.
    """

    def __init__(self, app_name: str) -> None:
        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._groups: dict[str, Membership] = {}  # by name
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
        self._groups[meeting.group_name] = Membership(size, member, Lock())

    def leave(self, group_name: str) -> None:
        """Others of that group then get errors where they would wait for this one."""
        self._groups.pop(group_name, None)

    def size(self, group_name: str) -> int | None:
        """Of a group that it is in, the trainer counted in."""
        return self._groups[group_name].size if group_name in self._groups else None

    def receive(self, offer: Offer) -> Received:
        """What the trainer broadcasts, all of it. Leaves the group if anything goes wrong."""
        group = self._groups.get(offer.group_name)
        if group is None:
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
            self.leave(offer.group_name)
            return Received(self._node_id, {}, "", in_a_line(error))
        finally:
            group.in_use.release()
        return Received(self._node_id, refs, whole.hexdigest())
