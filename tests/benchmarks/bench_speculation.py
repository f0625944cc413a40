"""What drafts bring: tokens that a step gives a sequence, and tokens a second against none.

    python -m tests.benchmarks.bench_speculation [--model qwen2.5-0.5b] [--rows 1 4 16]

Two engines, with drafts and without, in this process, in turn. "edit": a file of this repository is
the prompt, and the answer is that file with one name changed everywhere. Random weights would not
write it, so the model computes each row as always and the draw is then replaced by the file's
token. "random": tokens as random weights draw them, in which nothing repeats. Goals, at one row: 2
tokens a step of "edit", and 0.97 of the rate on "random". The vocabulary is the demo's; with
`--vocabulary FILE`, one that `bench_grammars --train FILE` has made, it is as large as Qwen's.
"""

import argparse
import json
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Encoder
from torch import Tensor

import engine.scheduling.scheduler
from cluster.checkpoint.dummy import DEMO
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from ops.interface import Ops
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

EDITED = Path(engine.scheduling.scheduler.__file__)
PROMPT_TOKENS = 1_500


class Dictated:
    """A backend whose draws are `script`'s, by position, if there is one."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.script: Tensor | None = None  # [positions] int32

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def sample(self, *inputs: Tensor) -> Tensor:
        drawn = self._ops.sample(*inputs)
        return drawn if self.script is None else self.script[inputs[-1].long()]


class Contender:
    """An engine, whose sampler does as it is told."""

    def __init__(self, folder: str, speculative_config: dict[str, Any] | None, max_num_seqs: int) -> None:
        config = EngineConfig.create(
            model=folder,
            kv_cache_memory_bytes=2**30,
            max_num_seqs=max_num_seqs,
            speculative_config=speculative_config,
            enable_prefix_caching=False,
        )
        self.executor = LocalExecutor(config)
        self.engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), self.executor))
        self.engine.start()
        sampler = self.executor._worker._runner._sampler
        sampler.graphs = None  # a tape would go past what dictates; layers stay on theirs
        self.dictated = sampler._model.ops = Dictated(sampler._model.ops)

    def decode(self, prompt: list[int], script: list[int] | None, num_rows: int, num_tokens: int) -> dict[str, float]:
        """Tokens a second, and those that a step brings a sequence, after everybody's first."""
        self.dictated.script = None if script is None else torch.tensor(script, dtype=torch.int32)
        for row in range(num_rows):
            params = SamplingParams(temperature=1.0, seed=row, ignore_eos=True, max_tokens=num_tokens)
            add_request(self.engine, f"r{row}", prompt, params)
        waiting = {f"r{row}" for row in range(num_rows)}
        while waiting:
            waiting -= {output.request_id for output in self.engine.step()}
        before, started = self._num_accepted(), time.perf_counter()
        tokens = 0
        while self.engine.has_unfinished_requests():
            tokens += sum(len(choice.token_ids) for output in self.engine.step() for choice in output.outputs)
        seconds = time.perf_counter() - started
        return {"rate": tokens / seconds, "tokens a step": tokens / (tokens - self._num_accepted() + before)}

    def _num_accepted(self) -> int:
        return self.engine.recorder.measures.copy().drafts.num_accepted


def edit(encoder: Encoder, num_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt, and the tokens of the prompt and its answer."""
    text = EDITED.read_text(encoding="utf-8")
    ((name, _),) = Counter(re.findall(r"\b[a-z]{4,}_[a-z]{4,}\b", text)).most_common(1)
    ids = encoder.encode(text, add_special_tokens=False).ids
    start = max(0, len(ids) - PROMPT_TOKENS)
    text = encoder.decode(ids[start:], skip_special_tokens=False)
    prompt = encoder.encode(text, add_special_tokens=False).ids
    answer = encoder.encode(re.sub(rf"\b{name}\b", "something_else", text), add_special_tokens=False).ids
    if len(answer) < num_tokens:
        raise SystemExit(f"{EDITED.name} has {len(answer)} tokens: --tokens is {num_tokens}")
    return prompt, prompt + answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=Path, help="a tokenizer.json of 151,643 tokens")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    encoder = Encoder.from_file(str(asked.vocabulary or DEMO / "tokenizer.json"))
    prompt, script = edit(encoder, asked.tokens)
    works = {"edit": (prompt, script), "random": (prompt, None)}
    contenders = {
        "drafts": Contender(folder, {"method": "ngram"}, max(asked.rows)),
        "plain": Contender(folder, None, max(asked.rows)),
    }
    try:
        for num_rows in asked.rows:
            for work, (given, dictated) in works.items():
                rounds = []
                for number in range(asked.rounds + 1):  # the first is to warm up
                    names = list(contenders)[:: 1 if number % 2 else -1]  # who is first, differs
                    of = {name: contenders[name].decode(given, dictated, num_rows, asked.tokens) for name in names}
                    if number:
                        rounds.append(of)
                told = {
                    "work": work,
                    "rows": num_rows,
                    "ratio": round(statistics.median(of["drafts"]["rate"] / of["plain"]["rate"] for of in rounds), 3),
                    "tokens a step": round(statistics.median(of["drafts"]["tokens a step"] for of in rounds), 2),
                    "tok/s": [round(of["drafts"]["rate"], 1) for of in rounds],
                    "plain tok/s": [round(of["plain"]["rate"], 1) for of in rounds],
                }
                print(json.dumps(told), flush=True)
    finally:
        for contender in contenders.values():
            contender.executor.shutdown()


if __name__ == "__main__":
    main()
