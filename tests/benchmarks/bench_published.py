"""Checkpoints that were published quantized, beside the same one in bf16: `python -m
tests.benchmarks.bench_published`.

Random weights of Qwen2.5-0.5B's shape, packed as each format describes it. W1 to W3 (see
`tests.benchmarks.works`) are done by both in turn.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path

from safetensors.torch import load_file

from tests.benchmarks.apart import Apart
from tests.benchmarks.folders import SHAPE, cache, cached_folder
from tests.benchmarks.peers import Squadron
from tests.benchmarks.works import COMPARISONS, compare
from tests.parallel.published.packers import FORMATS
from tests.parallel.published.publish import WEIGHTS, pack, write

FORMS = ("awq", "gptq 4 act-order", "gptq 8", "W8A8", "FP8 blocks")
CONFIG = "config.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMS, metavar="FORMAT")
    parser.add_argument("--works", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--model", default=SHAPE, help=f"shape, or demo (default: {SHAPE})")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    plain = cached_folder(options.model)
    print(f"{'':20}{'work':40}{'tok/s':>9}{'bf16':>9}{'ratio':>7}")
    with Apart(Squadron, plain) as beside:
        for name in options.formats:
            folder = published(Path(plain), name)
            with Apart(Squadron, str(folder)) as engine:
                for work in options.works:
                    works = COMPARISONS[work].smaller() if options.model == "demo" else COMPARISONS[work]
                    told = compare(works, {"published": engine, "bf16": beside}, plain, options.rounds, None)
                    report(name, told["work"], told["tok_per_s"])


def report(name: str, work: str, rates: dict[str, list[float]]) -> None:
    """Medians, and that of the rounds' ratios."""
    ours, plain = rates["published"], rates["bf16"]
    ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
    print(f"{name:20}{work:40}{statistics.median(ours):9.1f}{statistics.median(plain):9.1f}{ratio:7.2f}", flush=True)


def published(plain: Path, name: str) -> Path:
    """The checkpoint in that format; made once and kept."""
    folder = cache() / "published" / f"{plain.name} {name}"
    if (folder / CONFIG).exists():  # the last file that is written
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in plain.iterdir():
        if file.name != CONFIG and not file.name.startswith("model.") and file.is_file():
            shutil.copy(file, folder)
    print(f"making {folder}", flush=True)
    hf_config = json.loads((plain / CONFIG).read_text(encoding="utf-8"))
    write(folder, pack(load_file(plain / WEIGHTS), FORMATS[name])[0], hf_config, FORMATS[name])
    return folder


if __name__ == "__main__":
    main()
