"""Processes that die: workers (T1), engine replicas (T4), gateways and Serve's proxy (T5)."""

import asyncio

from cluster.chaos.report import Fault, Report
from tests.end_to_end.chaos.app import FOUR_RANKS, app_args, running
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.processes import CONTROLLER, ENGINE, GATEWAY, PROXY, SERVING
from tests.end_to_end.chaos.run import Load, disturbed, kill_every


def kill_workers(options: Options) -> Report:
    """T1: kill -9 a random worker of TP=2 × PP=2 every 5 s under 500 streams; not a spare, whose
    death delays nobody.
    """
    num_faults = options.pick(options.faults, 8, 2)
    load = Load(options.pick(options.streams, 500, QUICK_STREAMS), seed=options.seed)
    deliver = kill_every(options.interval or 5.0, SERVING, num_faults, seed=options.seed)
    engine = FOUR_RANKS | {"speculative_config": options.speculative_config}
    with running(app_args(engine, recovers=options.recovers, num_models=options.models)) as app:
        report = asyncio.run(disturbed("T1", app.url, load, num_faults=num_faults, deliver=deliver))
        if options.speculative_config is not None:
            report.figures["right guesses"] = app.drafts()["accepted_tokens_total"]
    if report.figures.get("right guesses") == 0:
        report.unmet.append("no guess was right")
    return report


def kill_engines(options: Options) -> Report:
    """T4: kill -9 one of two engine replicas every 10 s under 200 streams, from clients that do not
    try again.
    """
    num_faults = options.pick(options.faults, 5, 1)
    load = Load(options.pick(options.streams, 200, QUICK_STREAMS), seed=options.seed)
    deliver = kill_every(options.interval or (3.0 if options.quick else 10.0), ENGINE, num_faults, seed=options.seed)
    with running(app_args({}, recovers=options.recovers, num_models=options.models, num_engines=2)) as app:
        return asyncio.run(disturbed("T4-two", app.url, load, num_faults=num_faults, deliver=deliver))


def kill_only_engine(options: Options) -> Report:
    """T4: the same with one engine replica: streams wait for the one that Serve starts in its
    place.
    """
    num_faults = options.pick(options.faults, 3, 1)
    load = Load(options.pick(options.streams, 100, QUICK_STREAMS), seed=options.seed)
    deliver = kill_every(options.interval or 30.0, ENGINE, num_faults, seed=options.seed)
    with running(app_args({}, recovers=options.recovers, num_models=options.models)) as app:
        return asyncio.run(disturbed("T4-one", app.url, load, num_faults=num_faults, deliver=deliver))


def kill_controllers(options: Options) -> Report:
    """controller: kill -9 Serve's controller every 10 s under 100 streams; then the only engine,
    replaced by the next.
    """
    num_faults = options.pick(options.faults, 3, 1)
    load = Load(options.pick(options.streams, 100, QUICK_STREAMS), seed=options.seed)
    seconds = options.interval or 10.0
    kill_controllers = kill_every(seconds, CONTROLLER, num_faults, seed=options.seed)
    kill_engine = kill_every(seconds, ENGINE, 1, seed=options.seed)

    async def deliver(faults: list[Fault]) -> None:
        await kill_controllers(faults)
        await kill_engine(faults)

    with running(app_args({}, recovers=options.recovers)) as app:
        return asyncio.run(disturbed("controller", app.url, load, num_faults=num_faults + 1, deliver=deliver))


def kill_gateways(options: Options) -> Report:
    """T5: kill -9 one of two gateways; its clients must be told, by an exception: no stream ends as
    if it were whole.
    """
    num_faults = options.pick(options.faults, 3, 1)
    load = Load(options.pick(options.streams, 100, QUICK_STREAMS), concurrency=32, seed=options.seed)
    deliver = kill_every(options.interval or 5.0, GATEWAY, num_faults, seed=options.seed)
    args = app_args({}, recovers=options.recovers, num_models=options.models, num_gateways=2)
    with running(args) as app:
        tolerated = frozenset({"lost"})
        report = asyncio.run(
            disturbed("T5", app.url, load, num_faults=num_faults, deliver=deliver, tolerated=tolerated)
        )
    if not report.counts["lost"]:
        report.unmet.append("no stream was on a gateway that was killed")
    return report


def kill_gateways_of_resuming_clients(options: Options) -> Report:
    """T5: the same under clients that come back with the last event they had: no stream of one
    choice is lost.
    """
    return _resumed("T5-resume", GATEWAY, options, num_faults=options.pick(options.faults, 3, 1), interval=5.0)


def kill_proxy(options: Options) -> Report:
    """T5: kill -9 Serve's HTTP proxy under clients that come back: connections are refused until
    Serve has a new one.
    """
    return _resumed("T5-proxy", PROXY, options, num_faults=options.pick(options.faults, 2, 1), interval=20.0)


def _resumed(name: str, victims: str, options: Options, *, num_faults: int, interval: float) -> Report:
    load = Load(options.pick(options.streams, 100, QUICK_STREAMS), concurrency=32, seed=options.seed, resumes=True)
    seconds = options.interval or (5.0 if options.quick else interval)
    deliver = kill_every(seconds, victims, num_faults, seed=options.seed)
    args = app_args({}, recovers=options.recovers, num_models=options.models, num_gateways=2, stream_resume=True)
    with running(args) as app:
        tolerated = frozenset({"lost"})  # streams of several choices, and those that had had no event yet
        report = asyncio.run(
            disturbed(name, app.url, load, num_faults=num_faults, deliver=deliver, tolerated=tolerated)
        )
    report.figures["resumed"] = sum(stream.num_resumed for stream in report.streams)
    if not report.figures["resumed"]:
        report.unmet.append("no stream was taken up again")
    for stream, found in zip(report.streams, report.problems, strict=True):
        if found and stream.last_event_id is not None:
            report.unmet.append(f"request {stream.request.index} could have been taken up again: {stream.error}")
    return report
