"""The store's shards, each with two actors of its own (`store_actor`), and what is in which.

What is stored lies where its id says, among as many shards as its gateway was configured with. In a
rolling update gateways may differ in that number: the shards of each number have actors of their
own, whose names tell it, and what a gateway does not find in its own it looks for in those of other
numbers (`store_shards`).
"""

import re
import zlib
from typing import NamedTuple

from cluster.actors.named import actor_names, end_actor

_NAME = re.compile(r"squadron-streams-(?P<app_name>.*)-(?P<number>\d+)of(?P<num_shards>\d+)-[01]", re.DOTALL)


class Shard(NamedTuple):
    """Of an application's store."""

    app_name: str
    number: int
    num_shards: int  # of the application

    def actor_name(self, twin: int) -> str:
        """Of number 0 or 1 of its two actors."""
        return f"squadron-streams-{self.app_name}-{self.number}of{self.num_shards}-{twin}"


def number_of(record_id: str, num_shards: int) -> int:
    """Of the shard, among so many, that has what has this id; the same in every process."""
    return zlib.crc32(record_id.encode(errors="surrogatepass")) % num_shards


def running_shards(app_name: str) -> set[Shard]:
    """Those that have an actor, or two. Asks Ray, which may raise RayError."""
    names = map(_NAME.fullmatch, actor_names())
    found = [Shard(name["app_name"], int(name["number"]), int(name["num_shards"])) for name in names if name]
    return {shard for shard in found if shard.app_name == app_name}


def end_store(app_name: str) -> None:
    """End the application's actors, if there are any."""
    for shard in running_shards(app_name):
        for number in (0, 1):
            end_actor(shard.actor_name(number))
