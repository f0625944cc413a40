"""`python -m tests.end_to_end.chaos T1 [T4 ...] [--quick]`: scenarios by their targets' names;
status 1 if one fails.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from cluster.chaos.report import Report
from cluster.ingress.choice import DEFAULT_WISH, WISHES
from tests.end_to_end.chaos import (
    busy,
    cache,
    disk,
    drops,
    ends,
    fair,
    freezes,
    kills,
    nodes,
    overload,
    poison,
    rude,
    slow_readers,
    soak,
    terms,
    updates,
)
from tests.end_to_end.chaos.options import NotPossibleHere, Options
from tests.end_to_end.namespaces import lost_head, lost_nodes
from tests.end_to_end.namespaces import updates as nodes_updates

SCENARIOS: dict[str, Callable[[Options], Report]] = {
    "T1": kills.kill_workers,
    "T4-two": kills.kill_engines,
    "T4-one": kills.kill_only_engine,
    "T4-term": terms.terminate_engine,
    "T5": kills.kill_gateways,
    "T5-resume": kills.kill_gateways_of_resuming_clients,
    "T5-proxy": kills.kill_proxy,
    "T5-term": terms.terminate_gateway,
    "T6-worker": freezes.freeze_worker,
    "T6-engine": freezes.freeze_engine,
    "T7": nodes.lose_node,
    "T8": freezes.be_slow,
    "T8-lock": busy.hold_the_lock,
    "T8-long": busy.send_long_prompts,
    "T10": updates.update,
    "T11": ends.terminate,
    "T12-row": poison.poison_rows,
    "T12-step": poison.poison_steps,
    "T12-form": poison.poison_forms,
    "T12-process": poison.poison_processes,
    "T14": rude.be_rude,
    "T16": drops.drop_clients,
    "T17": slow_readers.read_slowly,
    "T18": overload.overload,
    "T20": cache.starve,
    "T21": soak.soak,
    "controller": kills.kill_controllers,
    "raylet": ends.lose_raylet,
    "gcs": ends.lose_gcs,
    "disk": disk.fill,
    "overload": overload.overload,
    "keys": fair.be_greedy,
}
ON_MACHINES: dict[str, Callable[[Options], Report]] = {
    "T7": lost_nodes.lose_nodes,
    "T9-gcs": lost_head.lose_gcs,
    "T9-head": lost_head.lose_head,
    "T10": nodes_updates.update,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.end_to_end.chaos",
        description=__doc__,
        epilog="\n".join(str(scenario.__doc__) for scenario in (*SCENARIOS.values(), *ON_MACHINES.values())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = SCENARIOS | ON_MACHINES
    names = sorted({name.partition("-")[0] for name in known} | known.keys())
    parser.add_argument("scenario", nargs="+", choices=names, metavar="SCENARIO", help="as below")
    parser.add_argument("--quick", action="store_true", help="few streams and faults")
    parser.add_argument("--without-recovery", action="store_true", help="no restart, one attempt: it must fail")
    parser.add_argument("--streams", type=int, metavar="N", help="different requests")
    parser.add_argument("--faults", type=int, metavar="N", help="to deliver")
    parser.add_argument("--interval", type=float, metavar="S", help="between faults")
    parser.add_argument("--seconds", type=float, metavar="S", help="of T8 and T21")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of requests and victims (default: 0)")
    parser.add_argument("--models", type=int, default=1, metavar="N", help="that T1, T4 and T5 serve (default: 1)")
    parser.add_argument(
        "--speculative-config", type=json.loads, metavar="JSON", help="of the engines of T1, which must guess right"
    )
    parser.add_argument(
        "--ingress", choices=WISHES, default=DEFAULT_WISH, help=f"of T14, T17 and T18 (default: {DEFAULT_WISH})"
    )
    parser.add_argument(
        "--nodes",
        choices=("here", "namespaces"),
        default="here",
        help=f"namespaces: on machines made of them, which needs root; of {', '.join(ON_MACHINES)} (default: here)",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write NAME.json there, with every stream's hash")
    given = parser.parse_args()
    options = Options(
        quick=given.quick,
        recovers=not given.without_recovery,
        streams=given.streams,
        faults=given.faults,
        interval=given.interval,
        seconds=given.seconds,
        seed=given.seed,
        models=given.models,
        speculative_config=given.speculative_config,
        ingress=given.ingress,
    )
    has_passed = True
    for name in given.scenario:
        scenarios = _named(name, ON_MACHINES if given.nodes == "namespaces" else SCENARIOS)
        if not scenarios:
            parser.error(f"there is no {name} with --nodes {given.nodes}")
        has_passed &= all([_run(scenario, options, given.output) for scenario in scenarios])
    return 0 if has_passed else 1


def _named(name: str, among: dict[str, Callable[[Options], Report]]) -> list[Callable[[Options], Report]]:
    """T6 is T6-worker and T6-engine."""
    return [scenario for known, scenario in among.items() if name in (known, known.partition("-")[0])]


def _run(scenario: Callable[[Options], Report], options: Options, output: Path | None) -> bool:
    """Run, print, write; whether it passed, or cannot be run here."""
    try:
        report = scenario(options)
    except NotPossibleHere as reason:
        print(f"skipped: {reason}", flush=True)
        return True
    print("\n".join(report.lines()), flush=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        report.write(output / f"{report.name}.json")
    return report.has_passed


if __name__ == "__main__":
    sys.exit(main())
