"""The options of `squadron bench`, and what is refused."""

import argparse
from pathlib import Path

import pytest

from cluster.bench.command import add_options
from engine.errors import InvalidConfig

DEMO = str(Path(__file__).resolve().parents[3] / "configs" / "demo")


def bench(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="squadron bench")
    add_options(parser)
    options = parser.parse_args(arguments)
    options.run(options)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        bench(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("latency", DEMO, "--batch-size", "0"), "0 is below 1"),
            (("latency", DEMO, "--num-iters-warmup", "-1"), "-1 is below 1"),
            (("latency", DEMO, "--input-len", "9:8"), "'9:8' does not go upwards from 1 or more"),
            (("throughput", DEMO, "--output-len", "many"), "'many' is neither a number nor two, as in 16:256"),
            (("serve", "--base-url", "http://x", "--request-rate", "0"), "0 is not above 0"),
            (("serve", "--base-url", "http://x", "--goodput", "speed:3"), "there is no objective 'speed'"),
            (("serve", "--base-url", "http://x", "--goodput", "ttft"), "'ttft' is not a metric and milliseconds"),
        ],
    )
    def test_mistakes(self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
        assert message in refused(capsys, *arguments)

    def test_files_are_checked_first(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfig, match=r"plots are SVG, so the name ends in \.svg"):
            bench("latency", "/nowhere", "--plot", str(tmp_path / "plot.png"))
        with pytest.raises(InvalidConfig, match="there is no folder"):
            bench("latency", "/nowhere", "--output", str(tmp_path / "none" / "result.json"))
        folder = tmp_path / "folder.svg"
        folder.mkdir()
        for option in ("--output", "--plot"):
            with pytest.raises(InvalidConfig, match=r"folder\.svg: it is a folder"):
                bench("latency", "/nowhere", option, str(folder))
