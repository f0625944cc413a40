"""transformers, as one of the engines that are measured side by side."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteriaList

from cluster.bench.workload import Work
from tests.benchmarks.floors import product_dtype
from tests.benchmarks.peers import Times


@dataclass(slots=True)
class _Clock:
    """A stopping criterion that never stops, and notes when it was first asked: after the first
    token.
    """

    first: float | None = None
    started: float = field(default_factory=time.perf_counter)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.first = self.first or time.perf_counter() - self.started
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Transformers(AbstractContextManager["Transformers"]):
    """`generate` of the library, on one batch of requests of one length, in the dtype in which
    torch's products are fast here, and otherwise as it is without any tuning.
    """

    def __init__(self, folder: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=product_dtype())
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def __exit__(self, *_: object) -> None:
        del self._model

    def run(self, works: Sequence[Work]) -> Times:
        prompts = torch.tensor([work.prompt for work in works])
        (output_len,) = {work.output_len for work in works}
        clock = _Clock()
        with torch.inference_mode():
            answers = self._model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=output_len,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        last = time.perf_counter() - clock.started
        assert answers.shape == (len(works), prompts.shape[1] + output_len), answers.shape
        assert clock.first is not None
        return Times(clock.first, last)
