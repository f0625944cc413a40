"""What a token costs a gateway: from the delta channel's message to the socket of an event stream.

    python -m tests.benchmarks.bench_gateway [--streams 64] [--tokens 400] [--path PATH]
        [--repeats 3] [--profile]

Prints processor time of the gateway's process for each token: of a gateway as Serve's direct
ingress runs it, with the delta channel, HTTP and everything between, and in turn of the least that
could write such a stream, a bare protocol that writes the same number of bytes. A scripted engine
and the clients run beside it, in processes of their own, in lock-step. --profile prints where the
gateway spends it (by cProfile, which itself makes it several times slower).
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BARE_EVENT_BYTES = 260  # about as many as a chat event has


@contextmanager
def started(module: str, *arguments: object) -> Iterator[tuple[int, list[int]]]:
    """A part of the benchmark, as a process that ends with this: its number and its ports."""
    command = [sys.executable, "-m", f"tests.benchmarks.gateway.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
        process.stdin.close()


def measure(arguments: argparse.Namespace, *, is_bare: bool) -> dict[str, float]:
    """See `client.measure`."""
    size = ("--streams", arguments.streams, "--tokens", arguments.tokens)
    with ExitStack() as stack:
        if is_bare:
            pid, (http, steps) = stack.enter_context(started("server", "--bare", BARE_EVENT_BYTES, *size))
        else:
            _, (orders, steps) = stack.enter_context(started("engine", *size))
            profile = ["--profile"] if arguments.profile else []
            pid, (http,) = stack.enter_context(started("server", "--engine", orders, *profile))
        where = ("--http", http, "--steps", steps, "--pid", pid, "--path", arguments.path)
        command = [sys.executable, "-m", "tests.benchmarks.gateway.client", *map(str, (*where, *size))]
        result: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--path", default="/v1/chat/completions", help="or /v1/completions")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    figures = {}
    names = ("gateway", "bare")
    runs = [{name: measure(arguments, is_bare=name == "bare") for name in names} for _ in range(arguments.repeats)]
    for name in names:
        median = {key: statistics.median(run[name][key] for run in runs) for key in runs[0][name]}
        figures |= {f"{name}_{key}": value for key, value in median.items()}
        print(
            f"{name:8} {median['cpu_seconds'] * 1e6:6.1f} us of processor time a token, {arguments.streams} streams, "
            f"{median['tokens_per_second']:.0f} tok/s, {median['events']:.2f} events, "
            f"{median['event_bytes']:.0f} bytes a token; {median['request_cpu_seconds'] * 1e6:.0f} us a request beside"
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
