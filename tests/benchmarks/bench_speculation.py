"""What drafts bring: tokens that a step gives a sequence, and tokens a second against none.

    python -m tests.benchmarks.bench_speculation [--model qwen2.5-0.5b] [--draft 1] [--rows 1 4 16]

Engines without drafts, with drafts from the text, and with `--draft N` with those of a draft model,
the first N layers of the model; in this process, in turn. "edit": a file of this repository is the
prompt, and the answer is that file with one name changed everywhere. Random weights would not write
it, so the models compute each row as always and the draw is then replaced by the file's token; that
of the draft model, at every fifth position, by a wrong one. "edit, held": the same as a structured
output, of a form that any text has. "random": tokens as random weights draw
them, in which nothing repeats. Goals, at one row: 2 tokens a step of "edit", and 0.97 of the rate
on "random". The vocabulary is the demo's; with `--vocabulary FILE`, one that `bench_grammars
--train FILE` has made, it is as large as Qwen's.
"""

import argparse
import json
import re
import shutil
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
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
from ops.interface import Draws, Ops
from tests.benchmarks.folders import SHAPE, cache, cached_folder
from tests.engine.support.arrivals import add_request

EDITED = Path(engine.scheduling.scheduler.__file__)
PROMPT_TOKENS = 1_500
WRONG_EVERY = 5  # positions, of a draft model's dictated guesses
ANY_TEXT = {"regex": r"(.|\n)*"}
MORE = [0] * 32  # behind the answer, where a draft model guesses


CPU = "CPU ms a token"


class Dictated:
    """A backend whose tokens are `script`'s, by position, if there is one."""

    def __init__(self, ops: Ops, wrong_every: int = 0) -> None:
        self._ops = ops
        self._wrong_every = wrong_every
        self.script: Tensor | None = None  # [positions] int32

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def sample(self, *inputs: Tensor, draws: Draws) -> Tensor:
        drawn = self._ops.sample(*inputs, draws=draws)
        if self.script is None:
            return drawn
        position = inputs[-1].long()
        is_wrong = (
            position % self._wrong_every == 0 if self._wrong_every else torch.zeros_like(position, dtype=torch.bool)
        )
        return torch.stack((self.script[position] ^ is_wrong.int(), drawn[1]))


@dataclass(frozen=True)
class Work:
    prompt: list[int]
    script: list[int] | None = None  # the tokens of prompt and answer; None: as the weights draw them
    form: dict[str, str] | None = None  # of the answer


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
        runner = self.executor._worker._runner
        samplers = [(runner._sampler, 0)]
        samplers += [] if runner._proposer is None else [(runner._proposer._sampler, WRONG_EVERY)]
        self.dictated = []
        for sampler, wrong_every in samplers:
            sampler.graphs = None  # a tape would go past what dictates; layers stay on theirs
            sampler._model.ops = Dictated(sampler._model.ops, wrong_every)
            self.dictated.append(sampler._model.ops)

    def decode(self, work: "Work", num_rows: int, num_tokens: int) -> dict[str, float]:
        """Tokens a second, and those that a step brings a sequence, after everybody's first."""
        script = work.script
        for dictated in self.dictated:
            dictated.script = None if script is None else torch.tensor([*script, *MORE], dtype=torch.int32)
        for row in range(num_rows):
            params = SamplingParams(
                temperature=1.0, seed=row, ignore_eos=True, max_tokens=num_tokens, structured_outputs=work.form
            )
            add_request(self.engine, f"r{row}", work.prompt, params)
        waiting = {f"r{row}" for row in range(num_rows)}
        while waiting:
            waiting -= {output.request_id for output in self.engine.step()}
        before, started, used = self._num_accepted(), time.perf_counter(), time.process_time()
        tokens = 0
        while self.engine.has_unfinished_requests():
            tokens += sum(len(choice.token_ids) for output in self.engine.step() for choice in output.outputs)
        seconds = time.perf_counter() - started
        used = time.process_time() - used
        steps = tokens - self._num_accepted() + before
        return {"rate": tokens / seconds, "tokens a step": tokens / steps, "CPU ms a token": 1000 * used / tokens}

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


def compare(rounds: list[dict[str, dict[str, float]]], name: str) -> dict[str, Any]:
    """A contender with the one without drafts: medians, and all rates."""
    pairs = [(of[name], of["plain"]) for of in rounds]
    return {
        "ratio": round(statistics.median(ours["rate"] / plain["rate"] for ours, plain in pairs), 3),
        "CPU ratio": round(statistics.median(plain[CPU] / ours[CPU] for ours, plain in pairs), 3),
        "tokens a step": round(statistics.median(ours["tokens a step"] for ours, _ in pairs), 2),
        "tok/s": [round(ours["rate"], 1) for ours, _ in pairs],
        "plain tok/s": [round(plain["rate"], 1) for _, plain in pairs],
    }


def draft_folder(folder: str, num_layers: int) -> str:
    """The first layers of the model in `folder`, beside it."""
    made = cache() / f"draft-{Path(folder).name}-{num_layers}"
    if not made.exists():
        shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.py", "tasks", "*.jsonl"))
        config = json.loads((made / "config.json").read_text(encoding="utf-8"))
        config |= {"num_hidden_layers": num_layers}
        config.pop("layer_types", None)
        weights = load_file(made / "model.safetensors")
        names = [
            name for name in weights if f"{name}..".split(".")[1] != "layers" or int(name.split(".")[2]) < num_layers
        ]
        save_file({name: weights[name] for name in names}, made / "model.safetensors", {"format": "pt"})
        (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(made)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=Path, help="a tokenizer.json of 151,643 tokens")
    parser.add_argument("--draft", type=int, metavar="N", help="layers of a draft model of the same width")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    encoder = Encoder.from_file(str(asked.vocabulary or DEMO / "tokenizer.json"))
    prompt, script = edit(encoder, asked.tokens)
    works = {"edit": Work(prompt, script), "edit, held": Work(prompt, script, ANY_TEXT), "random": Work(prompt)}
    contenders = {
        "plain": Contender(folder, None, max(asked.rows)),
        "ngram": Contender(folder, {"method": "ngram"}, max(asked.rows)),
    }
    if asked.draft:
        contenders["draft model"] = Contender(folder, {"model": draft_folder(folder, asked.draft)}, max(asked.rows))
    try:
        for num_rows in asked.rows:
            for name_of_work, work in works.items():
                rounds = []
                for number in range(asked.rounds + 1):  # the first is to warm up
                    names = list(contenders)[:: 1 if number % 2 else -1]  # who is first, differs
                    of = {name: contenders[name].decode(work, num_rows, asked.tokens) for name in names}
                    if number:
                        rounds.append(of)
                for name in list(contenders)[1:]:
                    row = {"work": name_of_work, "rows": num_rows, "drafts": name}
                    print(json.dumps(row | compare(rounds, name)), flush=True)
    finally:
        for contender in contenders.values():
            contender.executor.shutdown()


if __name__ == "__main__":
    main()
