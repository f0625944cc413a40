"""`squadron chaos`: streams from a server of yours, while you or a command cause faults."""

import argparse
import asyncio
import sys
from pathlib import Path

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.faults import deliver, engines
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from cluster.chaos.run import answerable_kinds, show, undisturbed
from cluster.commands.command_line import add_server_options
from engine.errors import InvalidConfig, without_secret


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Send the same requests twice: undisturbed, and while faults hit the cluster. Each answer must be the same, "
        "bit for bit. For a staging cluster: you deliver the faults (kill a worker, switch a machine off), or "
        "--fault-command does; its faults count once the server has lost a worker or an engine. Exit status 1 if a "
        "stream was lost, duplicated or changed, or if fewer faults than --faults were delivered."
    )
    add_server_options(parser)
    parser.add_argument("--model", metavar="NAME", help="model name; default: all that the server lists, in turn")
    parser.add_argument(
        "--streams", type=_count, default=100, metavar="N", help="number of different requests (default: 100)"
    )
    parser.add_argument("--concurrency", type=_count, default=16, metavar="N", help="requests at once (default: 16)")
    parser.add_argument(
        "--max-tokens", type=_count, default=200, metavar="N", help="most tokens per answer (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default: 0)")
    parser.add_argument(
        "--fault-command", metavar="COMMAND", help="shell command that causes a fault; exit status 0 if it did"
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
        help="seconds to send requests for, while you cause faults; with --fault-command a maximum (default: 300)",
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
        model, *others = [options.model] if options.model else await client.models()
        adapter = await client.first_adapter()
        kinds = await answerable_kinds(client, model, adapter)
        given = {"max_tokens": options.max_tokens, "seed": options.seed, "kinds": kinds}
        requests = make_requests(options.streams, model=model, others=others, adapter=adapter, **given)
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
        return Report(f"chaos at {without_secret(options.base_url)}", num_named, faults, streams, expected)


async def _deliver(options: argparse.Namespace, client: ChaosClient, faults: list[Fault], stop: asyncio.Event) -> None:
    """Have faults delivered, by the command or by the user, and then stop sending."""
    if options.fault_command is None:
        await asyncio.sleep(options.seconds)
    else:
        limits = {"most": options.faults, "interval": options.interval, "seconds": options.seconds}
        await deliver(client, options.fault_command, faults, **limits)
    stop.set()


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def _seconds(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)
