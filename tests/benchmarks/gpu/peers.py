"""transformers on random weights of the same shapes and the loads of `engine.py`: figures in the
same form, so that the table can say how many times as fast the engine is.

Attention is torch's own (sdpa), as flash-attn is not taken for granted; over pages that is
`paged|sdpa`, which attends over all sequences' keys under a mask.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.benchmarks.gpu.engine import LOADS, Figures, Work, requests
from tests.benchmarks.gpu.shapes import SHAPES

SAMPLED = {"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 1.0}  # as the engine does
STEPS = 48  # decoded by each sequence, at most: a median needs no more
TOKENS_A_BLOCK = 256
BATCHED_TOKENS = 4096  # of continuous batching: its mask is as wide as all keys


class StepTimes(transformers.StoppingCriteria):
    """Stops nothing: notes when each step has ended on the device, in seconds of `perf_counter`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        _wait_for(self._device)
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Peer:
    """A model that is made when something is first measured of it."""

    def __init__(self, shape: str, device: torch.device) -> None:
        self._shape, self._device, self._load = shape, device, LOADS[shape]
        self._draw = random.Random(7)

    def steps(self) -> Iterator[Callable[[], Figures]]:
        for batch in self._load.batches:
            yield partial(self._steps, batch, "dynamic")

    def compiled_steps(self) -> Iterator[Callable[[], Figures]]:
        """On a GPU, `generate` compiles steps with a static cache by itself: mode
        "reduce-overhead", which is Inductor and CUDA graphs.
        """
        yield partial(self._steps, 1, "static")

    def many(self) -> Iterator[Callable[[], Figures]]:
        """The least of the loads of many requests: the whole of the largest takes minutes."""
        yield partial(self._many, self._padded, "one padded batch")
        yield partial(self._many, self._continuous, "continuous batching")

    def _steps(self, batch: int, cache: str) -> Figures:
        """Milliseconds of a step that decodes a token for each of so many sequences."""
        context, num_steps = self._load.context, min(self._load.steps, STEPS)
        for _ in range(2):  # the first warms up, in the same shapes: a static cache has their size
            prompts = [[self._draw.randint(1, 10_000) for _ in range(context)] for _ in range(batch)]
            times = StepTimes(self._device)
            started = time.perf_counter()
            self._generate(prompts, num_steps, cache, [times])
        taken = [after - before for before, after in pairwise(times.times)]
        return self._named(
            cache="static, compiled" if cache == "static" and self._device.type == "cuda" else cache,
            attention="sdpa",
            batch=batch,
            context=context,
            first_ms=1e3 * (times.times[0] - started),
            ms_a_step=1e3 * statistics.median(taken),
        )

    def _many(self, run: Callable[[Work], float], way: str) -> Figures:
        count, longest = self._load.many[-1]
        run(requests(count, min(longest, 16), seed=1))
        todo = requests(count, longest)
        seconds = run(todo)
        num_tokens = _num_tokens(todo)
        return self._named(
            way=way,
            attention="paged|sdpa" if run == self._continuous else "sdpa",
            requests=count,
            longest=longest,
            output_tokens=num_tokens,
            seconds=seconds,
            output_tok_per_s=num_tokens / seconds,
        )

    def _named(self, **figures: Any) -> Figures:
        return {"shape": self._shape, "peer": f"transformers {transformers.__version__}", **figures}

    def _padded(self, todo: Work) -> float:
        """Seconds. Every sequence decodes as long as the longest."""
        started = time.perf_counter()
        self._generate([prompt for prompt, _ in todo], max(params.max_tokens or 0 for _, params in todo))
        return time.perf_counter() - started

    def _generate(
        self, prompts: Sequence[list[int]], num_tokens: int, cache: str = "dynamic", criteria: Sequence[StepTimes] = ()
    ) -> None:
        longest = max(map(len, prompts))
        rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        given = self._model.generate(
            self._tensor(rows),
            attention_mask=self._tensor(mask),
            generation_config=transformers.GenerationConfig(
                pad_token_id=0, max_new_tokens=num_tokens, cache_implementation=cache, **SAMPLED
            ),
            stopping_criteria=transformers.StoppingCriteriaList(criteria),
        )
        _wait_for(self._device)
        assert given.shape == (len(prompts), longest + num_tokens), given.shape

    def _continuous(self, todo: Work) -> float:
        """Seconds from the first request to the last token: not those of making the cache."""
        num_blocks = sum(-(-(len(prompt) + (params.max_tokens or 0)) // TOKENS_A_BLOCK) for prompt, params in todo)
        config = transformers.ContinuousBatchingConfig(
            num_blocks=num_blocks + num_blocks // 4 + 1,
            max_batch_tokens=BATCHED_TOKENS,
            max_requests_per_batch=len(todo),
            allow_block_sharing=False,  # no prompt begins as another does
        )
        self._model.set_attn_implementation("paged|sdpa")  # else it would look for flash-attn
        try:
            with self._model.continuous_batching_context_manager(
                generation_config=transformers.GenerationConfig(eos_token_id=-1, pad_token_id=0, **SAMPLED),
                continuous_batching_config=config,
            ) as manager:
                started = time.perf_counter()
                for prompt, params in todo:
                    manager.add_request(prompt, max_new_tokens=params.max_tokens, eos_token_id=-1)
                num_tokens = sum(len(_next_result(manager).generated_tokens) for _ in todo)
                seconds = time.perf_counter() - started
        finally:
            self._model.set_attn_implementation("sdpa")
        assert num_tokens == _num_tokens(todo), num_tokens
        return seconds

    def _tensor(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, device=self._device)

    @cached_property
    def _model(self) -> Any:
        shape = dict(SHAPES[self._shape])
        config = transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)
        with self._device:
            model: Any = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            )
        model.generation_config.eos_token_id = None  # else it would be taken where none is given
        return model.to(self._device).eval()


def _next_result(manager: Any) -> Any:
    """Of a request that has ended; RuntimeError if it or all failed."""
    while (result := manager.get_result(timeout=1)) is None or not result.is_finished():
        if not manager.is_running():
            raise RuntimeError("continuous batching has ended by itself")
    if result.error is not None:
        raise RuntimeError(result.error)
    return result


def _num_tokens(todo: Work) -> int:
    return sum(params.max_tokens or 0 for _, params in todo)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
