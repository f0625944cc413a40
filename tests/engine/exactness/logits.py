"""Logits, looked at: the same to the bit for every sharding, and close to transformers'.

    python -m tests.engine.exactness.logits [X1 X5] [--requests 500]

X1: TP 1, 2, 4 × PP 1, 2, 4 on the demo checkpoint and TP 1, 2 on random weights of Qwen2.5-0.5B's
shape, bfloat16 on the C++ kernels: the logits of every step are compared to the bit with one
rank's. X5: greedy tokens and logits in float32 beside transformers', on the demo checkpoint.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from cluster.checkpoint.dummy import make_checkpoint
from cluster.checkpoint.shapes import SHAPES
from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest, LateMasks
from engine.text.tokenizer import Tokenizer
from engine.worker.model_runner import ModelRunner
from tests.doubles.thread_executor import ThreadExecutor
from tests.engine.exactness.test_transformers_parity import generate
from tests.engine.support.demo import Request, answers, held_out_prompts
from tests.engine.support.workloads import DEMO

Row = tuple[int, int, int]  # seed, choice, position: which logits of which request
SHAPE = "qwen2.5-0.5b"
MAX_TOKENS = 24
MAX_MODEL_LEN = 512  # of X1: what its small cache holds
MAX_LOGIT_DIFFERENCE = 1e-3


class LogitsSpy:
    """Keeps the logits of every sampled row that `keep` is given, by the request and the position
    they are for.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.rows: dict[Row, torch.Tensor] = {}
        self._model, self._sample = runner._model, runner._sampler.sample
        self._logits = self._model.logits
        self._parts: list[torch.Tensor] = []
        self._model.logits = self._keep
        runner._sampler.sample = self._name  # type: ignore[method-assign]

    def _keep(self, residual: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._logits(residual)
        self._parts.append(logits.clone())  # sampling changes them
        return logits

    def _name(self, request: ExecuteModelRequest, residual: torch.Tensor | None, late_masks: LateMasks) -> Any:
        sampled = self._sample(request, residual, late_masks)
        columns = request.sampling
        keys = zip(columns.seed.tolist(), columns.choice.tolist(), columns.position.tolist(), strict=True)
        for key, row in zip(keys, (row for part in self._parts for row in part), strict=True):
            self.rows[key] = row
        self._parts.clear()
        return sampled


@contextmanager
def spied_engine(folder: str, **overrides: object) -> Iterator[tuple[LLMEngine, LogitsSpy]]:
    arguments = {
        "model": folder,
        "ops_backend": "cpu",
        "kv_cache_memory_bytes": 2**26,
        "swap_space": 0,
        "num_threads": 1,
    }
    config = EngineConfig.create(**(arguments | overrides))
    executor = ThreadExecutor(config)
    engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
    try:
        engine.start()
        speaker = config.world_size - config.tensor_parallel_size
        yield engine, LogitsSpy(executor._workers[speaker]._runner)
    finally:
        executor.shutdown()


def x1() -> Iterator[bool]:
    meshes = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4)]
    yield from _same_bits("demo checkpoint", DEMO, _requests(held_out_prompts(32)), meshes)
    generator = torch.Generator().manual_seed(0)
    with TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), SHAPES[SHAPE], seed=0)
        vocab_size = ModelConfig.load(folder).vocab_size
        prompts = [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in (5, 17, 64, 131)]
        yield from _same_bits(f"shape of {SHAPE}", folder, _requests(prompts), [(1, 1), (2, 1)])


def _requests(prompts: list[list[int]]) -> list[Request]:
    """Greedy and seeded by turns."""
    return [
        (prompt, SamplingParams(temperature=float(n % 2), seed=n, max_tokens=MAX_TOKENS, ignore_eos=True))
        for n, prompt in enumerate(prompts)
    ]


def _same_bits(label: str, folder: str, requests: list[Request], meshes: list[tuple[int, int]]) -> Iterator[bool]:
    expected: dict[Row, torch.Tensor] = {}
    for tp, pp in meshes:
        sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "max_model_len": MAX_MODEL_LEN}
        with spied_engine(folder, dtype="bfloat16", **sizes) as (engine, spy):
            answers(engine, requests)
            rows = spy.rows
        expected = expected or rows
        # Steps built ahead may have rows beyond the end, which are discarded.
        shared = expected.keys() & rows.keys()
        assert len(shared) >= len(requests) * MAX_TOKENS, f"{len(shared)} rows of logits are not all"
        differ = sum(not torch.equal(expected[key].view(torch.int32), rows[key].view(torch.int32)) for key in shared)
        digest = hashlib.sha256(b"".join(rows[key].numpy().tobytes() for key in sorted(shared))).hexdigest()[:16]
        print(
            f"X1 {label}, TP={tp} PP={pp}: {len(shared)} rows of logits, {differ} differ, sha256 {digest}", flush=True
        )
        yield differ == 0


def x5(num_prompts: int) -> Iterator[bool]:
    theirs = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    prompts = held_out_prompts(num_prompts)
    requests = [(p, SamplingParams(temperature=0.0, seed=n, max_tokens=MAX_TOKENS)) for n, p in enumerate(prompts)]
    for backend in ("cpu", "reference"):
        with spied_engine(DEMO, dtype="float32", ops_backend=backend) as (engine, spy):
            ours = [answer.outputs[0].token_ids for answer in answers(engine, requests)]
        wrong, worst = 0, 0.0
        for n, prompt in enumerate(progress(iterable=prompts, desc="transformers")):
            options = {"output_logits": True, "return_dict_in_generate": True, "num_beams": 1}
            expected = generate(theirs, prompt, max_new_tokens=MAX_TOKENS, **options)
            wrong += ours[n] != expected.sequences[0, len(prompt) :].tolist()
            rows = sorted((key, row) for key, row in spy.rows.items() if key[0] == n)
            for (_, row), logits in zip(rows, expected.logits, strict=False):
                worst = max(worst, float((row - logits[0]).abs().max()))
        print(
            f"X5 {backend} ops, float32, {len(prompts)} prompts: {wrong} with other tokens than transformers', "
            f"largest difference of a logit {worst:.2e}",
            flush=True,
        )
        yield wrong == 0 and worst < MAX_LOGIT_DIFFERENCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="X1 or X5; default: both")
    parser.add_argument("--requests", type=int, default=500, help="prompts of X5")
    arguments = parser.parse_args()
    checks = {"X1": x1, "X5": lambda: x5(arguments.requests)}
    held = [good for name in arguments.checks or checks for good in checks[name]()]
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
