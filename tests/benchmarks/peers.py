"""The engines that are measured side by side, each with the same weights, prompts and threads:
Squadron here, transformers in `transformers_peer`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from cluster.bench.workload import Work
from cluster.workers.ray_executor import RayExecutor
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.executor import Executor
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.engine.support.arrivals import add_request


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the start of a run to the first token of any request, and to the last token of
    all.
    """

    first: float
    last: float


class Peer(Protocol):
    def run(self, works: Sequence[Work]) -> Times:
        """Answer all of them, greedily, taking no notice of EOS."""


class Limited(RayExecutor):
    """With so many steps in flight at most."""

    def __init__(self, config: EngineConfig, depth: int) -> None:
        self._limit = depth
        super().__init__(config)

    def _settle_depth(self, config: EngineConfig) -> None:
        super()._settle_depth(config)
        self.depth = min(self.depth, self._limit)
        self.runs_ahead = self.runs_ahead and self.depth > 1


class Squadron:
    """The engine, in this process or with ranks of the Ray cluster that this process is connected
    to, on a CPU unless `device` says otherwise.

    `depth` 1, with ranks of Ray's: a step is built once the one before it has been answered; None:
    as the executor has it.
    """

    def __init__(self, folder: str, *, depth: int | None = None, device: str = "cpu", **arguments: Any) -> None:
        config = EngineConfig.create(
            model=folder, dtype="bfloat16", device=device, swap_space=0, enable_prefix_caching=False, **arguments
        )
        self._executor: Executor = LocalExecutor(config) if config.runs_in_process else RayExecutor(config)
        if depth is not None:
            self._executor = Limited(config, depth)
        self._engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), self._executor))

    def __enter__(self) -> Self:
        self._engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown()

    def run(self, works: Sequence[Work]) -> Times:
        first = None
        missing = sum(work.output_len for work in works)
        started = time.perf_counter()
        for number, work in enumerate(works):
            add_request(self._engine, str(number), work.prompt, work.params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                assert output.error is None, output.error
                missing -= len(output.outputs[0].token_ids)
                first = first or time.perf_counter() - started
        assert first is not None and missing == 0, f"{missing} tokens are missing"
        return Times(first, time.perf_counter() - started)
