"""What is done to a server: asked, compared, harmed, loaded, put to sleep."""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.gpu.serving import asked, load
from tests.benchmarks.gpu.serving.load import Figures, Load
from tests.benchmarks.gpu.serving.server import Served
from tests.end_to_end.chaos.run import Load as ChaosLoad
from tests.end_to_end.chaos.run import disturbed, kill_every

KILL_SECONDS = 2.0  # between two faults
SILENCE_SECONDS = 60.0  # after which a stream counts as lost


class Wrong(Exception):
    """It ran, and what it gave is not what it had to give."""


@dataclass(slots=True)
class Run:
    """What steps have in common, and leave to later ones."""

    device: str
    quick: bool
    clients: int
    expected: list[str] = field(default_factory=list)  # digests of the requests' answers, each asked alone
    alone: dict[str, float] = field(default_factory=dict)  # tokens a second of the engine alone, by load

    @property
    def requests(self) -> list[asked.ChaosRequest]:
        return asked.requests(8 if self.quick else asked.NUM_REQUESTS, 24 if self.quick else 96)


Step = Callable[[Run, Served], Awaitable[Figures]]


async def chat(_: Run, served: Served) -> Figures:
    whole, streamed = await asyncio.to_thread(asked.chat, served.url)
    if whole != asked.ANSWER or streamed != asked.ANSWER:
        raise Wrong(f"the answer is {whole!r}, streamed {streamed!r}, not {asked.ANSWER!r}")
    return {"answer": whole}


async def one_by_one(run: Run, served: Served) -> Figures:
    run.expected = await asked.ask(served.url, run.requests, 1)
    return {"requests": len(run.expected)}


async def together(run: Run, served: Served) -> Figures:
    """The answers that requests had alone, of whichever server that was."""
    if not run.expected:
        raise Wrong("there is nothing to compare with: no requests were answered one by one")
    told = await asked.ask(served.url, run.requests, len(run.requests))
    if differing := asked.differing(told, run.expected):
        raise Wrong(f"requests {differing} of {len(told)} have other tokens or logprobs")
    return {"requests": len(told), "same bits": True}


async def killed(title: str, num_faults: int, run: Run, served: Served) -> Figures:
    """Processes of that title under streams."""
    num_streams = 8 if run.quick else 32
    chaos = ChaosLoad(num_streams, num_streams, 60 if run.quick else 200, silence_seconds=SILENCE_SECONDS)
    deliver = kill_every(KILL_SECONDS, title, num_faults)
    report = await disturbed(title, served.url, chaos, num_faults=num_faults, deliver=deliver)
    if not report.has_passed:
        raise Wrong("; ".join(report.lines()))
    silences = [round(seconds, 2) for seconds in report.resume_seconds]
    return {
        "faults": len(report.faults),
        "streams": len(report.streams),
        "interrupted": len(silences),
        "silent_s": [silences[0], silences[len(silences) // 2], silences[-1]] if silences else [],
    } | {f"{name}_streams": report.counts[name] for name in ("lost", "duplicated", "changed")}


async def asleep(level: int, run: Run, served: Served) -> Figures:
    """Memory in MiB; answers as before afterwards."""
    figures: Figures = {"awake_mib": used_mib(run.device)}
    async with aiohttp.ClientSession(served.url) as session:
        for path, name in ((f"/sleep?level={level}", "asleep"), ("/wake_up", "woken")):
            began = asyncio.get_running_loop().time()
            async with session.post(path) as response:
                if response.status != 200:
                    raise Wrong(f"{path} answers {response.status}: {(await response.text())[:300]}")
            figures[f"{name}_s"] = asyncio.get_running_loop().time() - began
            figures[f"{name}_mib"] = used_mib(run.device)
    return figures | await together(run, served)


async def updated(folder: Path, run: Run, served: Served) -> Figures:
    """The weights that it has already, anew; answers as before."""
    address, environment = served.ray
    command = [sys.executable, "-m", "tests.benchmarks.gpu.serving.weights", address, str(folder)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=os.environ | environment)
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    answer = json.loads(told.splitlines()[-1]) if process.returncode == 0 else {"error": "the call failed"}
    if answer["error"] is not None:
        raise Wrong(f"the weights were not changed: {answer['error']}")
    return {"weights_version": answer["weights_version"]} | await together(run, served)


async def alone(name: str, given: Load, run: Run) -> Figures:
    figures = await load.alone(given)
    run.alone[name] = figures["tok_per_s"]
    return figures


async def loaded(name: str, given: Load, run: Run, served: Served) -> Figures:
    """Once to warm up, once to measure."""
    some = Load(**asdict(given) | {"requests": 2 * given.streams, "output_len": max(2, given.output_len // 2)})
    through = partial(load.through_http, served.port, served.pid)
    await through(some, run.clients)
    figures = await through(given, run.clients)
    if name in run.alone:
        figures["of_the_engine_alone"] = figures["tok_per_s"] / run.alone[name]
    return figures


def used_mib(device: str) -> int | None:
    """Of the GPU, by all processes; None without one."""
    if device != "cuda":
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told: Any = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(told.split()[0])
