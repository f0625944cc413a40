"""`squadron bench`: against real servers, one of them scripted, and with the demo checkpoint; no
figure's size is asserted.
"""

import argparse
import asyncio
import json
import math
import shlex
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.api.errors import ApiError
from cluster.bench import add_options, serve
from cluster.bench.client import Exchange
from cluster.bench.plot import write_plot
from cluster.bench.report import Outcome, summarize, table
from cluster.bench.workload import Lengths, lengths, poisson_arrivals, random_works
from engine.errors import InvalidConfig
from tests.cluster.api.scripted import Running, Script, running, text_of

DEMO = str(Path(__file__).resolve().parents[3] / "configs" / "demo")
SEED = 3


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


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def server(scripted: Running) -> Running:
    scripted.service.generated.clear()
    scripted.service.scripts.clear()
    return scripted


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class TestWorkload:
    def test_lengths(self) -> None:
        assert lengths("128") == Lengths(128, 128)
        assert lengths("16:256") == Lengths(16, 256)
        assert [str(lengths(text)) for text in ("7", "7:9")] == ["7", "7:9"]

    def test_all_lengths_come_and_no_others(self) -> None:
        works = random_works(np.random.default_rng(0), 300, Lengths(3, 6), Lengths(1, 4), 10)
        assert {len(work.prompt) for work in works} == {3, 4, 5, 6}
        assert {work.output_len for work in works} == {1, 2, 3, 4}
        assert {token_id for work in works for token_id in work.prompt} == set(range(10))

    def test_the_seed_decides(self) -> None:
        first, again, other = (
            random_works(np.random.default_rng(seed), 9, Lengths(1, 9), Lengths(1, 9), 50) for seed in (1, 1, 2)
        )
        assert first == again != other

    def test_arrivals_are_poisson(self) -> None:
        arrivals = poisson_arrivals(np.random.default_rng(0), 20_001, 50.0)
        gaps = np.diff(arrivals)
        assert arrivals[0] == 0
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
        assert gaps.std() == pytest.approx(1 / 50, rel=0.03)
        assert np.mean(gaps > 1 / 50) == pytest.approx(1 / math.e, abs=0.02)

    def test_all_at_once(self) -> None:
        assert poisson_arrivals(np.random.default_rng(0), 3, math.inf) == [0.0, 0.0, 0.0]


class TestMetrics:
    EXCHANGES = (
        Exchange(due=0.5, sent=1.0, pieces=[1.1, 1.3, 1.4], num_input=5, num_output=4, finish_reason="length"),
        Exchange(due=1.0, sent=1.0, pieces=[3.0], num_input=7, num_output=1, finish_reason="length"),
        Exchange(due=2.0, sent=2.0, pieces=[2.1, 9.0], error="in the stream: gone"),
    )

    def test_times_and_rates(self) -> None:
        found = serve.outcome(self.EXCHANGES, 4.0, [])
        assert {name: pytest.approx(values) for name, values in found.samples.items()} == {
            "TTFT": [100, 2000],
            "TPOT": [100],
            "ITL": [200, 100],
            "E2EL": [400, 2000],
            "lag": [500, 0, 0],
        }
        assert found.figures == {
            "duration, s": 4,
            "input tokens": 12,
            "output tokens": 5,
            "requests/s": 0.5,
            "output tok/s": 1.25,
            "total tok/s": 4.25,
        }
        assert (found.num_requests, found.failures) == (3, Counter({"in the stream: gone": 1}))

    @pytest.mark.parametrize(
        ("objectives", "good"),
        [
            (["ttft:101"], 1),
            (["ttft:99"], 0),
            (["ttft:2001", "tpot:99"], 1),
            (["ttft:2001", "tpot:101"], 2),
            (["e2el:401"], 1),
        ],
    )
    def test_goodput(self, objectives: list[str], good: int) -> None:
        found = serve.outcome(self.EXCHANGES, 4.0, [serve.objective(text) for text in objectives])
        assert found.figures["goodput, requests/s"] == good / 4

    def test_tokens_that_arrive_together_are_one_arrival(self) -> None:
        together = Exchange(due=0, sent=0, pieces=[1.0, 1.0, 1.0, 1.5, 1.5], num_output=5, finish_reason="length")
        found = serve.outcome([together], 2.0, [])
        assert (found.samples["ITL"], found.samples["TPOT"]) == ([500], [125])

    def test_percentiles(self) -> None:
        assert summarize([float(i) for i in range(101)]) == {"mean": 50, "p50": 50, "p90": 90, "p99": 99}
        assert summarize([]) == {}

    def test_the_table_tells_of_failures(self) -> None:
        failures = Counter({f"error {number}": number for number in range(1, 12)})
        text = table(Outcome(100, {}, {"TTFT": []}, failures))
        assert "34 done, 66 failed" in text
        assert "11 × error 11" in text
        assert "and 3 other errors" in text


def asked_of(server: Running, *arguments: str, output: Path | None = None) -> None:
    more = [] if output is None else ["--output", str(output)]
    shape = ("--input-len", "4:12", "--output-len", "3", "--num-prompts", "12", "--seed", str(SEED))
    bench("serve", "--base-url", server.url, *shape, *arguments, *more)


def script(server: Running, number: int, script: Script) -> None:
    """For the request of that number."""
    works = random_works(np.random.default_rng(SEED), 12, Lengths(4, 12), Lengths(3, 3), 256)
    server.service.scripts[text_of(works[number].prompt)] = script


class TestServe:
    def test_measures_a_server(self, server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        output, plot = tmp_path / "result.json", tmp_path / "plot.svg"
        asked_of(
            server, "--request-rate", "200", "--goodput", "ttft:60000", "e2el:60000", "--plot", str(plot), output=output
        )
        shown = capsys.readouterr().out
        result = json.loads(output.read_text())
        assert (result["benchmark"], result["num_requests"], result["num_failed"]) == ("serve", 12, 0)
        assert (result["figures"]["input tokens"], result["figures"]["output tokens"]) == (36, 36)
        assert result["figures"]["goodput, requests/s"] == result["figures"]["requests/s"] > 0
        assert len(result["samples"]["ITL"]) <= 24  # tokens may come together
        assert {name: len(values) for name, values in result["samples"].items()} == {
            "TTFT": 12,
            "TPOT": 12,
            "ITL": len(result["samples"]["ITL"]),
            "E2EL": 12,
            "lag": 12,
        }
        assert {"torch", "numpy", "python"} <= result["versions"].keys()
        assert result["machine"]["num_cpus"] >= 1
        assert result["command"] == shlex.join(sys.orig_argv)
        assert "12 done, 0 failed" in shown and "TPOT" in shown
        assert len(ElementTree.parse(plot).findall(".//{*}polyline")) == sum(map(bool, result["samples"].values()))
        generated = server.service.generated[1:]  # the first was a trial
        assert {len(each.prompt) for each in generated} <= set(range(4, 13))
        assert {(each.params.max_tokens, each.params.ignore_eos, each.params.temperature) for each in generated} == {
            (3, True, 0)
        }

    def test_failures_are_counted(self, server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        refusal = ApiError(503, "too much waits", code="overloaded")
        script(server, 2, Script(texts=[], error=refusal))
        script(server, 5, Script(texts=["a"], error=refusal))
        script(server, 7, Script(finishes=False))
        output = tmp_path / "result.json"
        with pytest.raises(SystemExit) as stopped:
            asked_of(server, output=output)
        assert stopped.value.code == "squadron bench serve: 3 of 12 requests failed"
        result = json.loads(output.read_text())
        assert result["num_failed"] == sum(result["failures"].values()) == 3
        assert result["failures"]["HTTP 503: too much waits"] == 1
        assert len(result["samples"]["TTFT"]) == 9
        shown = capsys.readouterr().out
        assert "9 done, 3 failed" in shown
        assert "1 × HTTP 503: too much waits" in shown

    def test_a_server_that_cannot_be_measured(self, server: Running) -> None:
        with pytest.raises(InvalidConfig, match='cannot be measured: HTTP 404: There is no model "other" here'):
            asked_of(server, "--model", "other")
        with pytest.raises(InvalidConfig, match="cannot be measured: HTTP 400"):
            asked_of(server, "--output-len", "500")
        with pytest.raises(InvalidConfig, match="/nowhere/v1/models answers HTTP 404"):
            bench("serve", "--base-url", server.url + "/nowhere")

    def test_no_server(self) -> None:
        with pytest.raises(InvalidConfig, match="lists no models: ClientConnectorError"):
            bench("serve", "--base-url", "http://127.0.0.1:9")

    def test_arrivals_do_not_wait_for_answers(self) -> None:
        """The server answers nobody until all of them have asked."""
        with held_server(num_held=24) as held:
            bench("serve", "--base-url", held.url, "--num-prompts", "24", "--request-rate", "1000")
        assert held.most_open == 24

    def test_concurrency_is_capped(self, tmp_path: Path) -> None:
        """The server answers whenever five have asked, so that it would wait for ever for a
        sixth.
        """
        with held_server(num_held=5) as held:
            bench("serve", "--base-url", held.url, "--num-prompts", "20", "--max-concurrency", "5")
        assert held.most_open == 5

    @pytest.mark.parametrize(
        ("ending", "message"),
        [
            (b"", "ended without finish_reason and usage"),
            (b"data: {}\n\ndata: [DONE]\n\n", "ended without finish_reason and usage"),
            (b"data: {\n\n", "DecodeError"),
            (b'data: {"error": {"message": "gone", "code": 5}}\n\n', "in the stream: gone"),
        ],
    )
    def test_a_stream_without_a_proper_end_is_no_success(self, ending: bytes, message: str) -> None:
        with (
            held_server(num_held=1, ending=ending) as held,
            pytest.raises(InvalidConfig, match=f"cannot be measured: .*{message}"),
        ):
            bench("serve", "--base-url", held.url)


class Held:
    """Answers requests in groups of `num_held`; the first, which is the trial, at once."""

    def __init__(self, num_held: int, ending: bytes | None) -> None:
        self.url = ""
        self.most_open = 0
        self._num_held, self._ending = num_held, ending
        self._open: list[asyncio.Event] = []
        self._trial_over = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"data": [{"id": "m"}]}'
        else:
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            await self._turn()
            end = b'data: {"choices": [{"finish_reason": "length"}]}\r\n\r\ndata: {"choices": [], "usage": %s}\n\n'
            usage = b'{"prompt_tokens": 3, "completion_tokens": 2}'
            ending = end % usage if self._ending is None else self._ending
            body = b': comment\n\ndata: {"choices": [{"text": "a"}]}\n\n' + ending
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def _turn(self) -> None:
        if not self._trial_over:
            self._trial_over = True
            return
        turn = asyncio.Event()
        self._open.append(turn)
        self.most_open = max(self.most_open, len(self._open))
        if len(self._open) == self._num_held:
            for waiting in self._open:
                waiting.set()
            self._open.clear()
        await turn.wait()


@contextmanager
def held_server(num_held: int, ending: bytes | None = None) -> Iterator[Held]:
    held = Held(num_held, ending)
    with in_a_thread(lambda: asyncio.start_server(held.answer, "127.0.0.1", 0)) as server:
        held.url = "http://{}:{}/v1".format(*server.sockets[0].getsockname())
        yield held


@contextmanager
def in_a_thread(start: Callable[[], Awaitable[asyncio.Server]]) -> Iterator[asyncio.Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> asyncio.Server:
        return await start()

    async def end(server: asyncio.Server) -> None:
        server.close()
        await server.wait_closed()

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.usefixtures("threads")
class TestOffline:
    ENGINE = ("--device", "cpu", "--ops-backend", "reference", "--num-gpu-blocks-override", "130", "--swap-space", "0")

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


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [0.3, 4000.0], list(np.geomspace(1, 2, 50))])
def test_a_curve_stays_within_its_frame(tmp_path: Path, values: list[float]) -> None:
    path = tmp_path / "plot.svg"
    write_plot(path, "a < b", {"TTFT": values, "none": []})
    (curve,) = ElementTree.parse(path).findall(".//{*}polyline")
    points = [tuple(map(float, point.split(","))) for point in curve.get("points", "").split()]
    assert all(0 <= x <= 360 and 0 <= y <= 210 for x, y in points)
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert (points[0][1], points[-1][1]) == (210, 0)
    assert all(before[0] == after[0] or before[1] == after[1] for before, after in pairwise(points))
    assert "share of samples, %" in [text.text for text in ElementTree.parse(path).findall(".//{*}text")]
