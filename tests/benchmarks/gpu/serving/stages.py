"""The servers that are started one after the other, and what is done to each."""

import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cluster.checkpoint.dummy import DEMO, TOKENIZER_FILES
from tests.benchmarks.gpu.serving import steps
from tests.benchmarks.gpu.serving.load import Figures, Load
from tests.benchmarks.gpu.serving.steps import Run, Step
from tests.benchmarks.gpu.shapes import SHAPES
from tests.end_to_end.chaos.processes import ENGINE, SERVING

RANKS_APART = ["--distributed-executor-backend", "ray"]  # one rank, too, in a process of its own
START_SECONDS, STEP_SECONDS = 240.0, 120.0


@dataclass(frozen=True, slots=True)
class Stage:
    """`before`: without a server, which would need the same device."""

    name: str
    model: Path
    options: Sequence[str]
    steps: Sequence[tuple[str, Step]] = ()
    before: Sequence[tuple[str, Callable[[Run], Awaitable[Figures]]]] = ()


def stages(device: str, quick: bool, folder: Path) -> list[Stage]:
    """In the order of what is to be known first; `folder` is for random weights. The first engine
    is alone: what cannot run, or takes minutes to compile, shows where nobody waits for it.
    """
    plain = ["--device", device]
    shape = random_weights(folder, "quick" if quick else "0.5b")
    demo = _demo(plain, device, quick)
    workers = [*plain, *RANKS_APART, "--enable-sleep-mode", "--max-num-seqs", "64"]
    chunks = [*plain, "--max-num-batched-tokens", "64", "--max-num-seqs", "32"]
    killed = partial(steps.killed, ENGINE, 1)
    return [
        Stage("workers", DEMO, workers, _harmed(quick), demo.before),
        Stage("chunks", DEMO, chunks, [("together", steps.together), ("engine killed", killed)]),
        replace(demo, before=()),
        *_shape(shape, plain, device, quick),
        Stage("eager", DEMO, [*plain, "--enforce-eager"], [("together", steps.together)]),
    ]


def _harmed(quick: bool) -> list[tuple[str, Step]]:
    return [
        ("chat", steps.chat),
        ("one by one", steps.one_by_one),
        ("together", steps.together),
        ("worker killed", partial(steps.killed, SERVING, 1 if quick else 2)),
        ("engine killed", partial(steps.killed, ENGINE, 1)),
        ("asleep, level 1", partial(steps.asleep, 1)),
        ("asleep, level 2", partial(steps.asleep, 2)),
        ("weights updated", partial(steps.updated, DEMO)),
    ]


def _demo(plain: list[str], device: str, quick: bool) -> Stage:
    streams, requests, output_len = (8, 16, 16) if quick else (64, 512, 128)
    loads = {
        f"{streams} streams of {kind}": Load(str(DEMO), streams, requests, 64, output_len, letters, {"device": device})
        for kind, letters in (("letters", True), ("any tokens", False))
    }
    options = [*plain, "--dtype", "bfloat16", "--max-num-seqs", str(streams)]
    return _measured("demo", DEMO, options, loads)


def _shape(model: Path, plain: list[str], device: str, quick: bool) -> list[Stage]:
    length = 16 if quick else 256
    common = {"load_format": "dummy", "max_model_len": 1024, "max_num_batched_tokens": 256 if quick else 8192}
    engine = common | {"device": device}
    loads = {
        f"{streams} streams": Load(str(model), streams, 2 * streams, length, length, False, engine)
        for streams in ((4, 8) if quick else (64, 256))
    }
    options = [*plain, "--dtype", "bfloat16", "--max-num-seqs", str(max(load.streams for load in loads.values()))]
    options += [text for name, value in common.items() for text in ("--" + name.replace("_", "-"), str(value))]
    gateways = ["--num-gateways", "2" if quick else "6"]
    many = [(name, partial(steps.loaded, f"{model.name}, {name}", load)) for name, load in loads.items()]
    return [
        _measured(model.name, model, options, loads),
        Stage(f"{model.name}, {gateways[1]} gateways", model, [*options, *gateways], many),
    ]


def _measured(name: str, model: Path, options: list[str], loads: dict[str, Load]) -> Stage:
    named = {each: f"{name}, {each}" for each in loads}
    return Stage(
        name,
        model,
        options,
        [(each, partial(steps.loaded, named[each], load)) for each, load in loads.items()],
        [(f"engine alone, {each}", partial(steps.alone, named[each], load)) for each, load in loads.items()],
    )


def random_weights(folder: Path, shape: str) -> Path:
    """A folder of the shape's config.json and the demo's tokenizer: weights are made as it is
    loaded.
    """
    model = folder / shape
    model.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(DEMO / name, model / name)
    (model / "config.json").write_text(json.dumps(SHAPES[shape]), encoding="utf-8")
    return model
