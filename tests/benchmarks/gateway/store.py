"""What the store of streams and responses can take, and what a write costs its actors.

    python -m tests.benchmarks.gateway.store [--shards 1 2 4] [--gateways 2] [--seconds 5]

Real actors of Ray on this machine, and processes that write to them as gateways do, each as fast as
it gets answers: streams, one at a time; tokens, one of each of 64 streams a shard at a time;
responses of 4 KiB, one at a time. Prints writes and records a second, and the processor time of a
record in all actors and in the gateways. The busiest actor is the one that ends first as load
grows: if it had a core to itself, all shards together could take `bound` records a second.
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import ray

from cluster.actors.named import NAMESPACE
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.records.store_changes import Kept, StoreChanges
from cluster.gateway.streams.shard import Shard, end_store, number_of
from cluster.gateway.streams.store_shards import StoreShards
from cluster.workers.processes.process_state import read_stat

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("streams", "tokens", "responses")
NUM_STREAMS, NUM_TOKENS = 64, 200
RESPONSE = bytes(4096)


class Made(NamedTuple):
    num_writes: int
    num_records: int


class Gateway:
    """An actor that writes."""

    def __init__(self, app_name: str, num_shards: int) -> None:
        self._shards = StoreShards(app_name, num_shards)

    async def begin(self) -> int:
        """Its process; the store is there."""
        self._shards.wake()
        await asyncio.gather(*(shard.write(StoreChanges()) for shard in self._shards.own))
        return os.getpid()

    async def write(self, kind: str, seconds: float) -> Made:
        """One write to each shard at a time, as gateways do."""
        end, made = time.monotonic() + seconds, [Made(0, 0)]
        if kind == "tokens":
            while time.monotonic() < end:
                made.append(await self._tell(end))
        else:
            loops = (self._keep(kind, number, end) for number in range(len(self._shards.own)))
            made += await asyncio.gather(*loops)
        return Made(*map(sum, zip(*made, strict=True)))

    async def _keep(self, kind: str, number: int, end: float) -> Made:
        num_writes, shard = 0, self._shards.own[number]
        while time.monotonic() < end:
            record_id = uuid.uuid4().hex
            if kind == "streams":
                changes = StoreChanges(opened={record_id: StreamRecord(bytes(32), 0, 7)})
            else:
                changes = StoreChanges(kept=[Kept((bytes(32), record_id), RESPONSE, 60.0)])
            await shard.write(changes)
            num_writes += 1
        return Made(num_writes, num_writes)

    async def _tell(self, end: float) -> Made:
        num_writes = num_records = 0
        ids = [uuid.uuid4().hex for _ in range(NUM_STREAMS * len(self._shards.own))]
        for step in range(-1, NUM_TOKENS):
            parts: dict[int, StoreChanges] = defaultdict(StoreChanges)
            for request_id in ids:
                part = parts[number_of(request_id, len(self._shards.own))]
                if step < 0:
                    part.opened[request_id] = StreamRecord(bytes(32), 0, 7)
                else:
                    part.told.append(Told(request_id, step, [1000 + step], step, 0, NUM_TOKENS))
            await asyncio.gather(*(self._shards.own[number].write(part) for number, part in parts.items()))
            num_writes += len(parts)
            num_records += len(ids)
            if time.monotonic() > end:
                break
        return Made(num_writes, num_records)


def measure(num_shards: int, num_gateways: int, kinds: list[str], seconds: float) -> list[dict[str, Any]]:
    app_name = uuid.uuid4().hex
    gateways = [ray.remote(num_cpus=0)(Gateway).remote(app_name, num_shards) for _ in range(num_gateways)]
    writing = ray.get([gateway.begin.remote() for gateway in gateways])
    shards = [Shard(app_name, number, num_shards) for number in range(num_shards)]
    stored = [_pid(shard, twin) for shard in shards for twin in (0, 1)]
    try:
        return [_measured(gateways, writing, stored, kind, seconds) for kind in kinds]
    finally:
        end_store(app_name)


def _measured(gateways: list[Any], writing: list[int], stored: list[int], kind: str, seconds: float) -> dict[str, Any]:
    before, begun = [processor_seconds(pid) for pid in (*writing, *stored)], time.monotonic()
    made = ray.get([gateway.write.remote(kind, seconds) for gateway in gateways])
    passed = time.monotonic() - begun
    spent = [processor_seconds(pid) - was for pid, was in zip((*writing, *stored), before, strict=True)]
    num_writes, num_records = map(sum, zip(*made, strict=True))
    of_actors = spent[len(writing) :]
    return {
        "shards": len(stored) // 2,
        "kind": kind,
        "writes_per_second": num_writes / passed,
        "records_per_second": num_records / passed,
        "actors_us": 1e6 * sum(of_actors) / num_records,
        "gateway_us": 1e6 * sum(spent[: len(writing)]) / num_records,
        "busiest": max(of_actors) / passed,
        "bound": num_records / max(of_actors),
        "memory_mib": max(_resident_mib(pid) for pid in stored),
    }


def processor_seconds(pid: int) -> float:
    """Of all its threads."""
    fields = read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _pid(shard: Shard, twin: int) -> int:
    while True:
        with contextlib.suppress(ValueError):  # until the other one has started it
            actor = ray.get_actor(shard.actor_name(twin), namespace=NAMESPACE)
            pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
            return pid
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gateway.store")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    os.environ |= {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    results = []
    with tempfile.TemporaryDirectory(prefix="sq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        packages = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(
            "local", num_cpus=1, include_dashboard=False, runtime_env=packages, log_to_driver=False, _temp_dir=folder
        )
        for num_shards in arguments.shards * arguments.rounds:
            for result in measure(num_shards, arguments.gateways, arguments.kinds, arguments.seconds):
                results.append(result)
                print(
                    "{shards} shard(s), {kind}: {writes_per_second:.0f} writes/s, {records_per_second:.0f} records/s; "
                    "us a record: actors {actors_us:7.1f}, gateway {gateway_us:7.1f}; busiest actor {busiest:4.0%}, "
                    "bound {bound:7.0f} records/s; {memory_mib:.0f} MiB".format(**result),
                    flush=True,
                )
        ray.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
