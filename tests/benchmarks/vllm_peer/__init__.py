"""vLLM beside us, where `.ci/vllm .venv/vllm` was run, in that environment: it wants other versions
of libraries than we do.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO

from cluster.bench.workload import Work
from tests.benchmarks.peers import Peer, Times

FOLDER = Path(sys.prefix) / "vllm"
THERE = Path(__file__).with_name("there.py")
LOG = Path(__file__).resolve().parents[3] / "build" / "vllm.log"
MAX_TOKENS = 4096  # of a context; those of the works are shorter
# Of its cache; it would take nine tenths of the machine's memory, and write to all of it.
CACHE_GIB = 4


def is_installed() -> bool:
    return (FOLDER / "bin" / "vllm").exists()


def environment() -> Mapping[str, str]:
    """What its documentation asks for: Intel's OpenMP, which comes with it."""
    openmp = FOLDER / "lib" / "libiomp5.so"
    preload = {"LD_PRELOAD": str(openmp)} if openmp.exists() else {}
    return {**os.environ, **preload, "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB), "VLLM_LOGGING_LEVEL": "WARNING"}


def open_log() -> IO[str]:
    """For what it says; empty."""
    LOG.parent.mkdir(exist_ok=True)
    return LOG.open("w", encoding="utf-8")


@contextmanager
def running(folder: str) -> Iterator[Peer]:
    """Its `LLMEngine`, compiled as it does by itself, in a process of its own on this process'
    cores. It takes minutes to start; what it says is in build/vllm.log.
    """
    command = [str(FOLDER / "bin" / "python"), str(THERE), folder, str(MAX_TOKENS)]
    with (
        open_log() as log,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, text=True, env=environment()) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        engine = _Engine(process.stdin, process.stdout)
        engine.answer()
        yield engine


@dataclass(frozen=True, slots=True)
class _Engine:
    requests: IO[str]
    answers: IO[str]

    def run(self, works: Sequence[Work]) -> Times:
        asked = [{"prompt": list(work.prompt), "output_len": work.output_len} for work in works]
        print(json.dumps(asked), file=self.requests, flush=True)
        return Times(*self.answer())

    def answer(self) -> list[float]:
        line = self.answers.readline()
        if not line:
            raise ChildProcessError(f"vLLM ended; {LOG} has what it said")
        answer: list[float] = json.loads(line)
        return answer
