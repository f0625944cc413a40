"""Faults that a shell command delivers, and whether the server was hit."""

import asyncio
import subprocess
import sys
import time

from cluster.chaos.client import ChaosClient
from cluster.chaos.report import Fault
from engine.errors import InvalidConfig

FAULT_SECONDS = 60.0  # for a fault's command to run
TICK_SECONDS = 0.5
HIT_SECONDS = 10.0  # for the server to notice a fault: a frozen worker takes a quarter of it


async def deliver(
    client: ChaosClient, command: str, faults: list[Fault], *, most: int, interval: float, seconds: float
) -> None:
    """Run the command at intervals, in seconds, and add each fault that the server has noticed to
    `faults`; until there are `most` of them, or `seconds` are over.
    """
    deadline = time.monotonic() + seconds
    while len(faults) < most and time.monotonic() < deadline:
        await asyncio.sleep(interval)
        try:
            before, at = await engines(client), time.monotonic()
        except InvalidConfig:  # the last fault is not over
            continue
        done = await asyncio.to_thread(_run_command, command)
        if done != 0:
            print(f"the fault command ended with status {done}", file=sys.stderr)
        elif await has_hit(client, before):
            faults.append(Fault(command, at))
        else:
            print("the fault command had no effect: no worker and no engine was lost", file=sys.stderr)


async def engines(client: ChaosClient) -> set[tuple[str, int]]:
    """Each engine replica, and how often it has recovered from lost workers. Raises
    InvalidConfig.
    """
    try:
        found = (await client.get("/debug/engines"))["engines"]
        return {(engine["replica"], engine["stats"]["num_recoveries"]) for engine in found}
    except (KeyError, TypeError) as error:
        raise InvalidConfig(f"the server's /debug/engines does not report recoveries: {error!r}") from None


async def has_hit(client: ChaosClient, before: set[tuple[str, int]]) -> bool:
    """Whether engines recovered or changed within some seconds, or the server does not answer."""
    deadline = time.monotonic() + HIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if await engines(client) != before:
                return True
        except InvalidConfig:
            return True
        await asyncio.sleep(TICK_SECONDS)
    return False


def _run_command(command: str) -> int:
    try:
        return subprocess.run(command, shell=True, timeout=FAULT_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return -1
