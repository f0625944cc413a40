"""A day of a model that is scaled by its load, simulated: `python -m
tests.benchmarks.bench_autoscaling`.

The policy and Serve's delays are the real ones; engines are not. The load rises in the morning and
falls at night, and doubles for ten minutes of some hours; it is counted in engines that it would
fill. An engine takes a minute to start. Prints a bar for each half hour, engine hours, and for how
long engines had more than their room.
"""

import argparse
import math
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import ray.serve.autoscaling_policy as serve
from ray.serve.config import AutoscalingConfig

from cluster.launch.config.load_policy import LoadPolicy
from cluster.launch.config.model_config import WINDOW_SECONDS, Autoscaling

TICK, DAY, START_SECONDS = 5, 86_400, 60  # seconds
PEAK, MOST = 6.0, 12  # engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-engines", type=int, default=MOST)
    parser.add_argument("--peak", type=float, default=PEAK, help="engines that the load would fill at 14:00")
    parser.add_argument("--target-load", type=float, default=0.7)
    parser.add_argument("--standby-engines", type=int, default=0)
    options = parser.parse_args()
    scaling = Autoscaling(
        max_engines=options.max_engines, target_load=options.target_load, standby_engines=options.standby_engines
    )
    loads = day(options.peak)
    engines = simulate(scaling, loads)
    print("\n".join(plot(loads, engines)))
    hours = sum(engines) * TICK / 3600
    over = sum(load > had for load, had in zip(loads, engines, strict=True)) * TICK / 60
    print(f"{hours:.0f} engine hours; with {max(engines)} engines all day {24 * max(engines)}")
    print(f"more load than room for {over:.0f} minutes; engines changed {changes(engines)} times")


def plot(loads: list[float], engines: list[int]) -> list[str]:
    """A line for each half hour."""
    lines = ["o: engines; #: load, in engines that it would fill"]
    for start in range(0, len(loads), 1800 // TICK):
        wanted, had = loads[start], engines[start]
        bar = "#" * round(4 * wanted)
        lines.append(f"{start * TICK // 3600:02}:{start * TICK % 3600 // 60:02} {bar:<{4 * had}}o  {had}".rstrip())
    return lines


def day(peak: float) -> list[float]:
    """The load at every tick."""
    generator = random.Random(0)
    crowded = {generator.randrange(24) * 3600 + generator.randrange(3000) for _ in range(4)}
    return [
        peak
        * max(0.05, math.sin(math.pi * (second - 6 * 3600) / (DAY / 1.5))) ** 2
        * (2 if any(start <= second < start + 600 for start in crowded) else 1)
        for second in range(0, DAY, TICK)
    ]


def simulate(scaling: Autoscaling, loads: list[float]) -> list[int]:
    """Engines that run at every tick."""
    policy, config = LoadPolicy(scaling.target_load, scaling.standby_engines), scaling.for_serve()
    target, running, starting, state = 1, 1, list[int](), dict[str, Any]()
    engines, window = [], int(WINDOW_SECONDS) // TICK
    for tick, _ in enumerate(loads):
        running += sum(at <= tick for at in starting)
        starting = [at for at in starting if at > tick]
        seen = loads[max(0, tick - window) : tick + 1]
        target, state = decide(policy, config, sum(seen) / len(seen), target, running, state, tick * TICK)
        starting += [tick + START_SECONDS // TICK] * (target - running - len(starting))
        running = min(running, target)
        engines.append(running)
    return engines


def decide(
    policy: LoadPolicy,
    config: AutoscalingConfig,
    load: float,
    target: int,
    running: int,
    state: dict[str, Any],
    now: int,
) -> tuple[int, dict[str, Any]]:
    """As Serve's controller does at each of its turns."""
    context: Any = SimpleNamespace(
        aggregated_metrics={"load": {"all": load}},
        total_num_requests=load,
        target_num_replicas=target,
        current_num_replicas=running,
        config=config,
    )
    wanted, _ = policy(context)
    found = delayed(wanted, context, state, now)
    return min(max(found[0], config.min_replicas), config.max_replicas), found[1]


def delayed(wanted: int, context: Any, state: dict[str, Any], now: int) -> tuple[int, dict[str, Any]]:
    """By Serve's own function, with its clock at `now`."""
    clock, serve.time = serve.time, SimpleNamespace(time=lambda: float(now))
    try:
        return serve._apply_default_params(wanted, context, state)
    finally:
        serve.time = clock


def changes(engines: list[int]) -> int:
    return sum(a != b for a, b in pairwise(engines))


if __name__ == "__main__":
    main()
