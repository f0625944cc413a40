"""The groups in which a model's engines are given weights, as any of its gateways uses them: what
there is of them is with the receivers.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from ray.exceptions import RayError

from cluster.weights.groups.messages import Group, Meeting, Offer, Received
from cluster.weights.groups.receivers import running_receivers, start_receiver
from cluster.weights.objects import NodeTensors
from engine.errors import InvalidRequest, in_a_line

START_SECONDS = 60.0  # for the receivers' processes
FAILED = "weights_group_failed"  # the code of an error of a group, which is closed then


class UpdateGroups:
    """Of one model. Raises InvalidRequest where a group is not there, or does not get what it was
    promised.
    """

    def __init__(self, app_name: str, deployment: str) -> None:
        self._place = app_name, deployment

    async def open(self, meeting: Meeting, node_ids: Iterable[str]) -> int:
        """Have a receiver on each of these nodes join; how many are in the group, the trainer
        counted in, which is to come to the meeting then.
        """
        await self.close(meeting.group_name)
        nodes = sorted(set(node_ids))
        receivers = [await asyncio.to_thread(start_receiver, *self._place, node) for node in nodes]
        size = len(nodes) + 1
        joins = [each.join.remote(meeting, rank, size) for rank, each in enumerate(receivers, 1)]
        await _told(asyncio.wait_for(asyncio.gather(*joins), START_SECONDS))
        return size

    async def close(self, group_name: str) -> None:
        """If there is one of that name: its other members' broadcasts fail from now on."""
        await _told(asyncio.gather(*[each.leave.remote(group_name) for each in await self._receivers()]))

    async def receive(self, offer: Offer) -> NodeTensors:
        """What the trainer broadcasts, once all nodes have it, and the same. After a failure the
        group is of no use: it is closed, but not one that has been opened meanwhile under its name.
        """
        name, receivers = offer.group_name, await self._receivers()
        groups: list[Group | None] = await _told(asyncio.gather(*[each.group.remote(name) for each in receivers]))
        members = [(each, group) for each, group in zip(receivers, groups, strict=True) if group is not None]
        if not members:
            raise _failed(f"there is no group {name!r}, or it was closed after a failure")
        try:
            return await self._received(offer, members)
        except InvalidRequest:
            await asyncio.gather(
                *[each.leave.remote(name, group.number) for each, group in members], return_exceptions=True
            )
            raise

    async def _received(self, offer: Offer, members: list[tuple[Any, Group]]) -> NodeTensors:
        """What these have. Raises InvalidRequest."""
        name = offer.group_name
        if len(members) + 1 not in [group.size for _, group in members]:
            raise _failed(f"group {name!r} has lost a receiver: {len(members)} are left")
        calls = [each.receive.remote(offer, group.number) for each, group in members]
        received: list[Received] = await _told(asyncio.gather(*calls))
        problems = sorted({each.problem for each in received if each.problem is not None})
        if problems:
            raise _failed(f"group {name!r} has failed: {'; '.join(problems)}")
        if len({each.digest for each in received}) > 1:
            raise _failed(f"group {name!r} has failed: not all nodes have received the same numbers")
        return NodeTensors({each.node_id: each.refs for each in received})

    async def _receivers(self) -> list[Any]:
        found: list[Any] = await _told(asyncio.to_thread(running_receivers, *self._place))
        return found


async def _told(calls: "Coroutine[Any, Any, Any] | asyncio.Future[Any]") -> Any:
    """Raises InvalidRequest if a receiver cannot be reached."""
    try:
        return await calls
    except (RayError, TimeoutError) as error:
        raise _failed(f"a receiver of weights was lost: {in_a_line(error)}") from None


def _failed(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="group_name", code=FAILED)
