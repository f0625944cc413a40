"""`squadron chaos`: streams from a server of yours, while you or a command cause faults."""

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.transcript import Transcript
from cluster.commands.command_line import add_server_options
from cluster.progress import progress
from engine.errors import InvalidConfig

FAULT_SECONDS = 60.0  # for a fault's command to run
TICK_SECONDS = 0.5
HIT_SECONDS = 10.0  # for the server to notice a fault: a frozen worker takes a quarter of it


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Send the same requests twice: undisturbed, and while faults hit the cluster. Each answer must be the same, "
        "bit for bit. For a staging cluster: you deliver the faults (kill a worker, switch a machine off), or "
        "--fault-command does; its faults count once the server has lost a worker or an engine. Exit status 1 if a "
        "stream was lost, duplicated or changed, or if fewer faults than --faults were delivered."
    )
    add_server_options(parser)
    parser.add_argument("--model", metavar="NAME", help="model name; default: the first that the server lists")
    parser.add_argument(
        "--streams", type=_count, default=100, metavar="N", help="number of different requests (default: 100)"
    )
    parser.add_argument("--concurrency", type=_count, default=16, metavar="N", help="requests at once (default: 16)")
    parser.add_argument(
        "--max-tokens", type=_count, default=200, metavar="N", help="most tokens per answer (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default: 0)")
    parser.add_argument(
        "--fault-command", metavar="COMMAND", help="shell command that delivers a fault; exit status 0 if it did"
    )
    parser.add_argument("--faults", type=_count, default=3, metavar="N", help="faults by --fault-command (default: 3)")
    parser.add_argument(
        "--interval", type=_seconds, default=10.0, metavar="S", help="seconds between faults (default: 10)"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds to send requests for, while you deliver faults; with --fault-command: at most (default: 300)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="JSON file to write figures and every stream's hash to"
    )


def run(options: argparse.Namespace) -> None:
    """Raises InvalidConfig; SystemExit with status 1 if the run failed."""
    if options.output is not None and not options.output.parent.is_dir():
        raise InvalidConfig(f"cannot write {options.output}: there is no folder {options.output.parent}")
    report = asyncio.run(_run(options))
    print("\n".join(report.lines()))
    if options.output is not None:
        report.write(options.output)
    if not report.has_passed:
        sys.exit(1)


async def _run(options: argparse.Namespace) -> Report:
    async with ChaosClient(options.base_url, api_key=options.api_key) as client:
        model = options.model or await client.first_model()
        requests = make_requests(options.streams, model=model, max_tokens=options.max_tokens, seed=options.seed)
        expected = await undisturbed(client, requests, options.concurrency)
        if options.fault_command is not None:
            await engines(client)  # raises InvalidConfig now rather than at the first fault
        faults: list[Fault] = []
        streams: list[Stream] = []
        stop = asyncio.Event()
        if options.fault_command is None:
            print(f"Deliver faults now; streams are sent for {options.seconds:.0f} s", flush=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_deliver(options, client, faults, stop))
            tasks.create_task(show(streams, faults, stop, total=options.streams))
            await client.send_all(requests, concurrency=options.concurrency, streams=streams, stop=stop)
            stop.set()
        num_named = 0 if options.fault_command is None else options.faults
        return Report(f"chaos at {options.base_url}", num_named, faults, streams, expected)


async def undisturbed(client: ChaosClient, requests: list[ChaosRequest], concurrency: int) -> dict[int, Transcript]:
    """The transcript of each request, by index; raises InvalidConfig if any fails even then."""
    streams: list[Stream] = []
    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(show(streams, [], done, total=len(requests), label="undisturbed"))
        await client.send_all(requests, concurrency=concurrency, streams=streams)
        done.set()
    for stream in streams:
        if not stream.transcript.is_complete:
            why = stream.error or "the stream ended early"
            raise InvalidConfig(
                f"request {stream.request.index} ({stream.request.kind}) fails without any fault: {why}"
            )
    return {stream.request.index: stream.transcript for stream in streams}


async def show(
    streams: list[Stream], faults: list[Fault], done: asyncio.Event, *, total: int, label: str = "streams"
) -> None:
    """A progress bar of ended streams and delivered faults, until `done`; occasional lines if
    stderr is not a terminal.
    """
    with progress(total=total, desc=label, unit="stream") as bar:
        while not done.is_set() or bar.n < len(streams):
            bar.total = max(total, len(streams))
            bar.set_postfix(faults=len(faults), refresh=False)
            bar.update(len(streams) - bar.n)
            await asyncio.sleep(TICK_SECONDS)


async def _deliver(options: argparse.Namespace, client: ChaosClient, faults: list[Fault], stop: asyncio.Event) -> None:
    """Wait, or run the command at intervals; then stop sending."""
    deadline = time.monotonic() + options.seconds
    if options.fault_command is None:
        await asyncio.sleep(options.seconds)
    while options.fault_command is not None and len(faults) < options.faults and time.monotonic() < deadline:
        await asyncio.sleep(options.interval)
        try:
            before, at = await engines(client), time.monotonic()
        except InvalidConfig:  # the last fault is not over
            continue
        done = await asyncio.to_thread(_run_command, options.fault_command)
        if done != 0:
            print(f"the fault's command ended with status {done}", file=sys.stderr)
        elif await has_hit(client, before):
            faults.append(Fault(options.fault_command, at))
        else:
            print("the fault's command hit nothing: no worker and no engine was lost", file=sys.stderr)
    stop.set()


async def engines(client: ChaosClient) -> set[tuple[str, int]]:
    """Each engine replica, and how often it has recovered from lost workers. Raises
    InvalidConfig.
    """
    try:
        found = (await client.get("/debug/engines"))["engines"]
        return {(engine["replica"], engine["stats"]["num_recoveries"]) for engine in found}
    except (KeyError, TypeError) as error:
        raise InvalidConfig(f"/debug/engines of the server does not tell of its recoveries: {error!r}") from None


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


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def _seconds(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)
