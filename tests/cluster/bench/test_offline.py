"""`squadron bench latency` and `throughput`, on an engine in this process."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.bench.command import add_options
from cluster.bench.workload import Lengths, random_works
from engine.errors import InvalidConfig

DEMO = str(Path(__file__).resolve().parents[3] / "configs" / "demo")


def bench(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="squadron bench")
    add_options(parser)
    options = parser.parse_args(arguments)
    options.run(options)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
class TestOffline:
    ENGINE = ("--device", "cpu", "--ops-backend", "reference", "--num-gpu-blocks-override", "130", "--swap-space", "0")
    ENGINE += ("--num-threads", "1")

    def test_latency(self, tmp_path: Path) -> None:
        output = tmp_path / "result.json"
        shape = ("--input-len", "8", "--output-len", "4", "--batch-size", "1", "3", "--num-iters", "2")
        bench("latency", DEMO, *shape, "--num-iters-warmup", "1", "--output", str(output), *self.ENGINE)
        result = json.loads(output.read_text())
        assert (result["num_requests"], result["num_failed"]) == (8, 0)
        assert {name: len(values) for name, values in result["samples"].items()} == {
            "batch 1, latency": 2,
            "batch 1, TTFT": 2,
            "batch 1, TPOT": 2,
            "batch 1, E2EL": 2,
            "batch 3, latency": 2,
            "batch 3, TTFT": 6,
            "batch 3, TPOT": 6,
            "batch 3, E2EL": 6,
        }
        assert all(mean["p99"] > 0 for mean in result["milliseconds"].values())

    def test_throughput(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        output = tmp_path / "result.json"
        shape = ("--input-len", "4:9", "--output-len", "5", "--num-prompts", "6", "--seed", "1")
        bench("throughput", DEMO, *shape, "--output", str(output), *self.ENGINE)
        figures = json.loads(output.read_text())["figures"]
        works = random_works(np.random.default_rng(1), 6, Lengths(4, 9), Lengths(5, 5), 768)
        num_input = sum(len(work.prompt) for work in works)
        assert (figures["input tokens"], figures["output tokens"]) == (num_input, 30)
        assert figures["total tok/s"] * figures["duration, s"] == pytest.approx(num_input + 30)
        shown = capsys.readouterr().out
        assert "output tok/s" in shown
        assert "6 done, 0 failed" in shown

    def test_a_batch_that_would_be_cut(self) -> None:
        with pytest.raises(InvalidConfig, match="a batch of 9 exceeds max_num_seqs=8"):
            bench("latency", DEMO, "--batch-size", "1", "9", "--max-num-seqs", "8")
