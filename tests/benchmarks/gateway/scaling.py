"""Whether N gateways carry N times the tokens of one: each with a scripted engine and clients of
its own, all at once.

    python -m tests.benchmarks.gateway.scaling [--gateways 1 2] [--streams 64] [--tokens 400]

Prints tokens a second of all together, and processor time of a gateway for each token. Where that
time does not depend on their number, gateways scale until cores end: the last line says how many
300,000 tok/s over 10,000 streams would take. On one machine engines and clients need cores as well.
"""

import argparse
import json
import math
import statistics
from concurrent.futures import ThreadPoolExecutor

from tests.benchmarks.bench_gateway import measure

GOAL = 300_000  # tokens a second


def together(num_gateways: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Figures of that many at once."""
    with ThreadPoolExecutor(num_gateways) as threads:
        runs = list(threads.map(lambda _: measure(arguments, is_bare=False), range(num_gateways)))
    return {
        "tokens_per_second": sum(run["tokens_per_second"] for run in runs),
        "cpu_seconds": statistics.mean(run["cpu_seconds"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gateway.scaling")
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, default=64, help="of each gateway")
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    arguments = parser.parse_args()
    arguments.path, arguments.profile = "/v1/chat/completions", False
    results = {}
    for num_gateways in arguments.gateways:
        result = results[num_gateways] = together(num_gateways, arguments)
        print(
            f"{num_gateways} gateway(s) × {arguments.streams} streams: {result['tokens_per_second']:8.0f} tok/s, "
            f"{result['cpu_seconds'] * 1e6:6.1f} us of a gateway's processor time a token",
            flush=True,
        )
    worst = max(result["cpu_seconds"] for result in results.values())
    print(f"{GOAL} tok/s would take {math.ceil(GOAL * worst)} gateways with a core each")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
