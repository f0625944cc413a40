"""What HTTP leaves of the engine: many streams at once through `squadron serve`, its client on the
same machine, beside the engine alone and, where it is installed, vLLM's server.

    python -m tests.benchmarks.http.bench [--model demo] [--streams 64] [--requests 512]
        [--input-len 64] [--output-len 128] [--any-token] [--repeats 3] [--ingress auto]
        [--flames FOLDER] [-- SERVE_OPTION ...]

Prints tokens a second, the share of the engine alone, milliseconds to the first event, and where
the processor time of a token goes: client, ingress, gateway, engine. Medians of the rounds. Only
tokens that are letters may be sampled, so that each is an event of its own: after random prompts
many others are half characters, which emit none (--any-token). Each stream's first answer has a
length of its own, so that streams do not all begin at once ever after; first events count from the
second answer on. --flames: a further round, which does not count, is watched by py-spy, for flame
graphs of the gateway and the engine.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.bench.workload import Lengths, Work, random_works
from cluster.ingress.choice import WISHES
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from tests.benchmarks import vllm_peer
from tests.benchmarks.apart import Apart
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.benchmarks.http import server
from tests.benchmarks.http.flames import recorded, recorder
from tests.benchmarks.http.processes import cpu_seconds
from tests.benchmarks.peers import Squadron
from tests.end_to_end.conftest import free_port

SEED = 0
KINDS = ("client", "ingress", "gateway", "engine", "other")


@dataclass(frozen=True, slots=True)
class Asked(Work):
    """A request whose answer is made of these ids, or of any."""

    allowed_ids: tuple[int, ...] | None

    @property
    def params(self) -> SamplingParams:
        plain = SamplingParams(temperature=0.0, max_tokens=self.output_len, ignore_eos=True)
        return plain if self.allowed_ids is None else replace(plain, allowed_token_ids=self.allowed_ids)

    @property
    def body(self) -> bytes:
        body: dict[str, Any] = {"prompt": self.prompt, "max_tokens": self.output_len, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True}
        if self.allowed_ids is not None:
            body["allowed_token_ids"] = self.allowed_ids
        return json.dumps(body).encode()


def make_works(folder: str, options: argparse.Namespace) -> list[Asked]:
    texts = Tokenizer(folder).token_bytes
    allowed = tuple(number for number, text in enumerate(texts) if len(text) == 1 and text.isalpha())
    exactly = Lengths(options.input_len, options.input_len), Lengths(options.output_len, options.output_len)
    works = random_works(np.random.default_rng(SEED), options.requests, *exactly, len(texts))
    lengths = [math.ceil(options.output_len * (number + 1) / options.streams) for number in range(options.streams)]
    lengths += [options.output_len] * (options.requests - options.streams)
    return [
        Asked(work.prompt, length, None if options.any_token else allowed)
        for work, length in zip(works, lengths, strict=True)
    ]


def engine_alone(folder: str, works: list[Asked], options: argparse.Namespace) -> list[float]:
    """Tokens a second of each round."""
    threads = options.alone_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    with Apart(Squadron, folder, max_num_seqs=options.streams, num_threads=threads) as engine:
        engine.run(works[: options.streams])
        return [_num_tokens(works) / engine.run(works).last for _ in range(options.repeats)]


def through_http(port: int, pid: int, works: list[Asked], num_streams: int) -> dict[str, float]:
    """One round: figures by name; `..._us` are microseconds of processor time a token."""
    before = cpu_seconds(pid)
    command = [sys.executable, "-m", "tests.benchmarks.http.client", "--port", str(port), "--streams", str(num_streams)]
    bodies = b"\n".join(work.body for work in works)
    done = json.loads(subprocess.run(command, input=bodies, stdout=subprocess.PIPE, check=True).stdout)
    after = cpu_seconds(pid)
    if done["failures"] or len(done["first_event_seconds"]) != len(works) - num_streams:
        raise ConnectionError(f"{len(done['failures'])} streams failed: {done['failures'][:1]}")
    spent = {"client": done["cpu_seconds"]} | {kind: after[kind] - before[kind] for kind in KINDS[1:]}
    num_tokens = _num_tokens(works)
    return {
        "tok_per_s": num_tokens / done["seconds"],
        "events_per_token": done["events"] / num_tokens,
        "first_event_ms": statistics.median(done["first_event_seconds"]) * 1e3,
        **{f"{kind}_us": seconds / num_tokens * 1e6 for kind, seconds in spent.items()},
    }


def measure(folder: str, options: argparse.Namespace) -> dict[str, Any]:
    works = make_works(folder, options)
    alone = engine_alone(folder, works, options)
    port = free_port()
    serve_options = ["--max-num-seqs", str(options.streams), "--ingress", options.ingress, *options.serve]
    with server.squadron(folder, port, serve_options) as pid:
        through_http(port, pid, works[: 2 * options.streams], options.streams)
        rounds = [through_http(port, pid, works, options.streams) for _ in range(options.repeats)]
        if options.flames is not None:
            with recorded(pid, options.flames):
                through_http(port, pid, works, options.streams)
    result: dict[str, Any] = {"alone_tok_per_s": statistics.median(alone), "squadron": _median(rounds)}
    result["share"] = result["squadron"]["tok_per_s"] / result["alone_tok_per_s"]
    if vllm_peer.is_installed():
        with server.vllm(folder, port, options.streams) as pid:
            through_http(port, pid, works[: 2 * options.streams], options.streams)
            rounds = [through_http(port, pid, works, options.streams) for _ in range(options.repeats)]
        result["vllm"] = _median(rounds)
    return result


def _median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def _num_tokens(works: list[Asked]) -> int:
    return sum(work.output_len for work in works)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.http.bench")
    parser.add_argument("--model", default="demo", choices=("demo", SHAPE))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512, help="at least two for each stream")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--ingress", default="auto", choices=WISHES)
    parser.add_argument("--any-token", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone-threads", type=int, metavar="N", help="of the engine alone; default: all cores")
    parser.add_argument("--flames", type=Path, metavar="FOLDER")
    parser.add_argument("serve", nargs="*", metavar="SERVE_OPTION", help="after --, for squadron serve")
    options = parser.parse_args()
    if options.requests < 2 * options.streams:
        parser.error(f"--requests {options.requests} is less than two for each of --streams {options.streams}")
    if options.flames is not None:
        recorder()
    return options


def main() -> None:
    options = _parse()
    print(f"load average {os.getloadavg()[0]:.1f} before", flush=True)
    result = measure(cached_folder(options.model), options)
    print(f"engine alone {result['alone_tok_per_s']:8.0f} tok/s")
    for name in ("squadron", "vllm"):
        if name in result:
            row = result[name]
            cpu = ", ".join(f"{kind} {row[f'{kind}_us']:.0f}" for kind in KINDS)
            print(
                f"{name:12} {row['tok_per_s']:8.0f} tok/s, {row['tok_per_s'] / result['alone_tok_per_s']:.0%} of the "
                f"engine alone, first event p50 {row['first_event_ms']:.0f} ms, "
                f"{row['events_per_token']:.2f} events a token\n{'':12} us of processor time a token: {cpu}"
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
