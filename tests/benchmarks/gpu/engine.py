"""The engine on random weights of a model's shape, in this process: steps of few and many
sequences, prompts that come while others decode, and many requests at once.

The many are those of nano-vllm's benchmark: 256 requests of 100 to 1,024 tokens in and out, seed 0.
"""

import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.frontend.garbage import COLLECTOR
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.benchmarks.gpu.profile import profiled
from tests.benchmarks.gpu.shapes import SHAPES
from tests.engine.support.arrivals import add_request

NUM_PROFILED = 24  # steps
DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"
NUM_REQUESTS, LONGEST = 256, 1024
FEWER = (64, 512)  # as many as a peer can be given in its time
Work = list[tuple[list[int], SamplingParams]]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine of a shape is measured by."""

    batches: tuple[int, ...]  # sequences that decode together
    context: int = 1000  # tokens of their prompts, about
    steps: int = 128  # decoded by each
    mixed: int = 32  # sequences that decode while prompts come
    arrivals: int = 8  # such prompts
    many: tuple[tuple[int, int], ...] = ()  # requests, and their longest prompt and output


LOADS = {
    "0.5b": Load((1, 64, 256), many=((NUM_REQUESTS, LONGEST), FEWER)),
    "7b": Load((1, 64)),
    "quick": Load((1, 2), context=20, steps=4, mixed=2, arrivals=1, many=((4, 12), (2, 8))),
}


@dataclass(slots=True)
class Run:
    """What the engine gave, and when, in seconds from the beginning."""

    num_tokens: int = 0
    first: dict[str, float] = field(default_factory=dict)  # of each request, from when it was added
    steps: list[tuple[float, int]] = field(default_factory=list)  # those that gave tokens, and to how many requests


def requests(count: int, longest: int, seed: int = 0) -> Work:
    """In the order in which nano-vllm's benchmark draws them: all prompts, then all output
    lengths.
    """
    draw = random.Random(seed)
    shortest = min(100, longest)
    prompts = [[draw.randint(0, 10_000) for _ in range(draw.randint(shortest, longest))] for _ in range(count)]
    lengths = [draw.randint(shortest, longest) for _ in range(count)]
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length) for length in lengths]
    return list(zip(prompts, params, strict=True))


class Measured:
    """An engine that starts when it is first asked for anything, and ends with `close`."""

    def __init__(self, shape: str, device: str, *, exact: bool) -> None:
        self._shape, self._device, self._exact = shape, device, exact
        self._load = LOADS[shape]
        self._stack = ExitStack()
        self._engine: LLMEngine | None = None
        self._draw = random.Random(7)

    def close(self) -> None:
        self._stack.close()

    def measures(self) -> Iterator[Callable[[], Figures]]:
        """Each begins with what may still have to be compiled, at a few tokens."""
        for batch in self._load.batches:
            yield partial(self._batch, batch)
        if self._device == "cuda":
            for batch in self._load.batches:
                yield partial(self._kernels, batch)
        yield self._mixed
        for count, longest in self._load.many:
            yield partial(self._many, count, longest)

    def _batch(self, batch: int) -> Figures:
        """Milliseconds of a step that decodes a token for each of so many sequences."""
        self._run(self._work(batch, 4))
        run = self._run(self._work(batch, self._load.steps))
        taken = [after - before for (before, few), (after, many) in pairwise(run.steps) if few == many == batch]
        return self._named(
            batch=batch,
            context=self._load.context,
            first_ms=1e3 * max(run.first.values()),
            ms_a_step=1e3 * statistics.median(taken),
            weight_bytes=2 * _num_weights(SHAPES[self._shape]),
        )

    def _kernels(self, batch: int) -> Figures:
        """What the device does in such a step."""
        engine = self._started()
        for number, each in enumerate(self._work(batch, NUM_PROFILED + 64)):
            add_request(engine, str(number), *each)
        self._steps(lambda counts: counts[-8:] == [batch] * 8)
        figures = profiled(lambda: self._steps(lambda counts: len(counts) == NUM_PROFILED))
        while engine.has_unfinished_requests():
            engine.step()
        return self._named(batch=batch, context=self._load.context, **figures)

    def _steps(self, is_enough: Callable[[list[int]], bool]) -> int:
        """How many steps gave tokens; is_enough: by how many requests each of them gave some to."""
        counts: list[int] = []
        while not is_enough(counts):
            assert self._started().has_unfinished_requests()
            if outputs := self._started().step():
                counts.append(len(outputs))
        return len(counts)

    def _mixed(self) -> Figures:
        """How long a prompt waits for its first token, and how long sequences that decode meanwhile
        wait for their next one: a prompt comes as soon as the one before has been answered.
        """
        load = self._load
        arriving = self._work(load.arrivals, 1)
        self._run(self._work(load.mixed, 4))
        decoding = self._work(load.mixed, load.steps + 8 * load.arrivals)
        run = self._run(decoding, arriving)
        waits = [1e3 * run.first[f"late {number}"] for number in range(load.arrivals)]
        decoded = [when for when, count in run.steps if count >= load.mixed]
        gaps = [1e3 * (after - before) for before, after in pairwise(decoded)]
        return self._named(
            decoding=load.mixed,
            prompt=load.context,
            ttft_ms_p50=statistics.median(waits),
            ttft_ms_max=max(waits),
            gap_ms_p50=statistics.median(gaps),
            gap_ms_max=max(gaps),
        )

    def _many(self, count: int, longest: int) -> Figures:
        self._run(requests(count, longest, seed=1)[: count // 4])
        todo = requests(count, longest)
        started = time.perf_counter()
        run = self._run(todo)
        seconds = time.perf_counter() - started
        return self._named(
            requests=count,
            longest=longest,
            output_tokens=run.num_tokens,
            seconds=seconds,
            output_tok_per_s=run.num_tokens / seconds,
        )

    def _named(self, **figures: Any) -> Figures:
        return {"shape": self._shape, "exact": self._exact, **figures}

    def _work(self, count: int, num_tokens: int) -> Work:
        """Prompts of their own, so that nobody finds another's in the cache."""
        params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=num_tokens)
        length = self._load.context
        return [([self._draw.randint(1, 10_000) for _ in range(length)], params) for _ in range(count)]

    def _run(self, todo: Work, late: Sequence[tuple[list[int], SamplingParams]] = ()) -> Run:
        """All of `todo` at once; of `late`, each when all others and the one before have a
        token.
        """
        engine, run, waiting = self._started(), Run(), list(enumerate(late))
        added: dict[str, float] = {}
        started = time.perf_counter()

        def add(name: str, prompt: list[int], params: SamplingParams) -> None:
            added[name] = time.perf_counter()
            add_request(engine, name, prompt, params)

        for number, each in enumerate(todo):
            add(str(number), *each)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                assert output.error is None, output.error
                run.num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
                run.first.setdefault(output.request_id, now - added[output.request_id])
            if outputs:
                run.steps.append((now - started, len(outputs)))
            if waiting and len(run.first) == len(added):
                number, each = waiting.pop(0)
                add(f"late {number}", *each)
        return run

    def _started(self) -> LLMEngine:
        if self._engine is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copyfile(DEMO / name, Path(folder) / name)
            (Path(folder) / "config.json").write_text(json.dumps(SHAPES[self._shape]), encoding="utf-8")
            config = EngineConfig.create(
                model=folder,
                load_format="dummy",
                device=self._device,
                exact=self._exact,
                max_model_len=4096,
                max_num_seqs=max(self._load.batches[-1], self._load.mixed + 1),
                max_num_batched_tokens=8192,
            )
            executor = LocalExecutor(config)
            self._stack.callback(executor.shutdown)
            self._engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
            self._engine.start()
            COLLECTOR.slow_down()  # as the engine's thread does
            self._stack.callback(COLLECTOR.set_back)
        return self._engine


def _num_weights(shape: dict[str, Any]) -> int:
    """What a step reads of them: all but an embedding that is not tied, of which it reads rows."""
    hidden, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    attention = 2 * hidden * hidden * (heads + kv_heads) // heads
    layer = attention + 3 * hidden * shape["intermediate_size"]
    return int(shape["num_hidden_layers"] * layer + shape["vocab_size"] * hidden)
