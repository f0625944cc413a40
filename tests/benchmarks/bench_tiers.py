"""What the cache's lower tiers bring to conversations that come back after many others.

    python -m tests.benchmarks.bench_tiers [--model qwen2.5-0.5b] [--conversations 16] [--turns 3]

Each conversation has its first turn, then each its second, and so on: between two turns of one, all
others have theirs, and the device's cache has room for a quarter of them. Four engines in this
process, in turn: "none" has the device alone, "host" a host pool with room for all, "folder" a
small one and a folder, and "restarted" is an engine that starts with that folder before each turn.
By turn: the median time to first token, the CPU time until then, and the share of its prompt that
was found on the device and below it. On CPUs the device's memory is the host's: there a larger
cache brings what "host" does, and "none" is what a GPU without the tiers would do.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from cluster.bench.environment import environment
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

BLOCK = 16


class Turn(NamedTuple):
    seconds: float  # to the first token
    cpu_seconds: float  # of all threads, until then
    num_prompt: int
    num_cached: int
    num_below: int  # of these, found below the device
    token_ids: tuple[int, ...]


class Talk:
    """Conversations with random messages; what is said depends on nothing but these."""

    def __init__(self, asked: argparse.Namespace, vocab_size: int) -> None:
        random = np.random.default_rng(0)
        shape = (asked.conversations, asked.turns, asked.message)
        self.messages = random.integers(100, min(vocab_size, 4000), shape).tolist()
        self.histories: list[list[int]] = [[] for _ in range(asked.conversations)]

    def turn(self, engine: LLMEngine, number: int, turn: int, num_tokens: int) -> Turn:
        prompt = self.histories[number] + self.messages[number][turn]
        before, began, cpu = engine.stats().num_external_hits, time.perf_counter(), time.process_time()
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        add_request(engine, "r", prompt, params)
        first, first_cpu, num_cached, said = 0.0, 0.0, 0, []
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter() - began
                first_cpu = first_cpu or time.process_time() - cpu
                num_cached = output.num_cached_tokens
                said += output.outputs[0].token_ids
        self.histories[number] = prompt + said
        below = engine.stats().num_external_hits - before
        return Turn(first, first_cpu, len(prompt), num_cached, below, tuple(said))


@contextmanager
def engine_on(folder: str, num_blocks: int, **options: Any):
    options = {"max_model_len": (num_blocks - 1) * BLOCK} | options
    config = EngineConfig.create(model=folder, num_gpu_blocks_override=num_blocks, **options)
    executor = LocalExecutor(config)
    engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()
        executor._worker._runner.moves.flush()
        executor.shutdown()


def converse(asked: argparse.Namespace, vocab_size: int, start: Callable[[ExitStack], LLMEngine], each_turn: bool):
    """[turns][conversations] of `Turn`."""
    talk, turns = Talk(asked, vocab_size), []
    with ExitStack() as stack:
        engine = start(stack)
        for turn in range(asked.turns):
            if each_turn and turn:
                stack.close()
                engine = start(stack)
            turns.append([talk.turn(engine, number, turn, asked.tokens) for number in range(asked.conversations)])
    return turns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--message", type=int, default=256, help="tokens of each message")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--folder", help="where a folder for blocks is made; default: that of temporary files")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    model = ModelConfig.load(folder)
    blocks_each = asked.turns * (asked.message + asked.tokens) // BLOCK + 2
    num_blocks = max(asked.conversations * blocks_each // 4, blocks_each) + 1
    bytes_each = BLOCK * 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * 4
    room = 1.2 * asked.conversations * blocks_each * bytes_each / (1 << 30)
    results: dict[str, Any] = {**environment(), "asked": vars(asked), "blocks": num_blocks}
    said = []
    with TemporaryDirectory(dir=asked.folder) as place:
        kinds: dict[str, dict[str, Any]] = {
            "none": {"swap_space": 0.0},
            "host": {"swap_space": room},
            "folder": {"swap_space": room / 8, "kv_offloading_path": str(Path(place, "one"))},
            "restarted": {"swap_space": room / 8, "kv_offloading_path": str(Path(place, "two"))},
        }
        print(f"{'':12}{'turn':>5}{'prompt':>8}{'ttft ms':>9}{'cpu ms':>8}{'device':>8}{'below':>7}")
        for kind, options in kinds.items():

            def start(stack: ExitStack, options: dict[str, Any] = options) -> LLMEngine:
                return stack.enter_context(engine_on(folder, num_blocks, **options))

            turns = converse(asked, model.vocab_size, start, each_turn=kind == "restarted")
            said.append([turn.token_ids for each in turns for turn in each])
            results[kind] = [row(kind, number, each) for number, each in enumerate(turns, 1)]
    results["same tokens"] = all(each == said[0] for each in said)
    print(f"The same tokens: {results['same tokens']}; load average {environment()['machine']['load_average']}")
    print(json.dumps(results))


def row(kind: str, number: int, turns: list[Turn]) -> dict[str, float]:
    num_prompt = sum(turn.num_prompt for turn in turns)
    below = sum(turn.num_below for turn in turns) / num_prompt
    figures = {
        "turn": number,
        "prompt": num_prompt / len(turns),
        "ttft_ms": 1000 * statistics.median(turn.seconds for turn in turns),
        "cpu_ms": 1000 * statistics.median(turn.cpu_seconds for turn in turns),
        "on_device": sum(turn.num_cached for turn in turns) / num_prompt - below,
        "below": below,
    }
    print(
        f"{kind:12}{number:>5}{figures['prompt']:>8.0f}{figures['ttft_ms']:>9.1f}{figures['cpu_ms']:>8.1f}"
        f"{figures['on_device']:>8.0%}{figures['below']:>7.0%}",
        flush=True,
    )
    return figures


if __name__ == "__main__":
    main()
