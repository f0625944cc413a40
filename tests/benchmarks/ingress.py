"""CPU time for each token, of what listens and of the gateway: HAProxy beside Serve's own proxy.

    python -m tests.benchmarks.ingress

Both servers run at once, and are asked in turns.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path

import aiohttp

from cluster.ingress.haproxy import haproxy_program
from cluster.workers.processes.process_state import read_stat
from tests.end_to_end.test_ingress import GATEWAY, Command, starting, wait_until_ready

NUM_STREAMS = 64
NUM_TOKENS = 128
NUM_ROUNDS = 4  # the first warms up
LISTENERS = {"haproxy": haproxy_program(), "proxy": "ray::ProxyActor"}
TICK_MICROSECONDS = 1e6 / os.sysconf("SC_CLK_TCK")


async def stream(session: aiohttp.ClientSession, command: Command) -> int:
    """The number of events of one answer."""
    body = {"model": f"m{command.port}", "prompt": "once " * 16, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    async with session.post(f"{command.url}/v1/completions", json=body | {"stream": True}) as response:
        response.raise_for_status()
        data = await response.read()
    return data.count(b'"text":')


async def ask(command: Command) -> int:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return sum(await asyncio.gather(*(stream(session, command) for _ in range(NUM_STREAMS))))


def spent(pids: list[int]) -> float:
    """CPU time so far, in microseconds."""
    return sum(int(ticks) for pid in pids for ticks in read_stat(pid)[11:13]) * TICK_MICROSECONDS


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commands = {name: stack.enter_context(starting(folder / name, ingress=name)) for name in LISTENERS}
        for command in commands.values():
            wait_until_ready(command)
        print(f"{NUM_STREAMS} streams of {NUM_TOKENS} tokens; µs of CPU for each event")
        for number in range(NUM_ROUNDS):
            for name, command in commands.items():
                pids = [command.pids(LISTENERS[name]), command.pids(GATEWAY)]
                before, at = [spent(each) for each in pids], time.monotonic()
                num_events = asyncio.run(ask(command))
                seconds = time.monotonic() - at
                listener, gateway = ((spent(each) - was) / num_events for each, was in zip(pids, before, strict=True))
                if number:
                    speed = f"{num_events / seconds:6,.0f} events/s"
                    print(f"{name:8} listener {listener:5.1f}  gateway {gateway:5.1f}  {speed}", flush=True)


if __name__ == "__main__":
    main()
