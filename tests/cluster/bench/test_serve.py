"""`squadron bench serve`, against a server whose answers are scripted."""

import argparse
import asyncio
import json
import shlex
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cluster.api.errors import ApiError
from cluster.bench.command import add_options
from cluster.bench.workload import Lengths, random_works
from engine.errors import InvalidConfig
from tests.cluster.api.scripted import Running, Script, running, text_of

SEED = 3


def bench(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="squadron bench")
    add_options(parser)
    options = parser.parse_args(arguments)
    options.run(options)


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def server(scripted: Running) -> Running:
    scripted.service.generated.clear()
    scripted.service.scripts.clear()
    return scripted


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

    def test_no_prompt_is_the_trials(self, server: Running) -> None:
        """The server would have it in its cache."""
        asked_of(server, "--num-prompts", "1", "--input-len", "32")
        trial, measured = server.service.generated
        assert trial.prompt != measured.prompt

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
        for url in ("http://127.0.0.1:9", "http://a..b:9"):
            with pytest.raises(InvalidConfig, match="cannot be measured: "):
                bench("serve", "--base-url", url, "--model", "m")

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
            (
                b'data: {"choices": [{"finish_reason": "abort"}], "usage": %s}\n\n'
                % b'{"prompt_tokens": 3, "completion_tokens": 1}',
                "the answer ended with finish_reason 'abort'",
            ),
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
