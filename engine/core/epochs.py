"""An engine's epochs: the first, those after a failed step, and those in which every rank has other
weights or wakes up. In each, the cache is empty, and every sequence is computed from its tokens.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from engine.admission.requests import Requests
from engine.checkpoint.fingerprint import Identity, fingerprint
from engine.core.parts import Parts
from engine.errors import EngineDead, InvalidConfig, StepFailure, WorkerLost
from engine.executor import Capacity, Weights
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.scheduler import Scheduler


class Engine(Protocol):
    """What is the engine's own of it."""

    dead: str | None
    requests: Requests

    def start(self) -> None: ...


class Epochs:
    """Of one engine; its thread's alone. No step may be in flight but those that are said to be
    lost.
    """

    def __init__(self, engine: Engine, parts: Parts) -> None:
        self.weights: Weights | None = None  # that the ranks have; None: those that are configured
        self.arithmetic: dict[str, str] = {}  # what tokens depend on beside the request, by name
        self.fingerprint = ""  # the hash of it; empty before the first one
        self._engine = engine
        self._parts = parts
        config, model = parts.config, parts.model_config
        self._identity = Identity(config.tokenizer or config.model, model.eos_token_ids)

    @property
    def has_begun(self) -> bool:
        """Whether there was a first one."""
        return bool(self.fingerprint)

    def start(self) -> Scheduler:
        """See `LLMEngine.start`."""
        parts = self._parts
        parts.cache_size.keeping.hold()
        try:
            capacity = parts.executor.start()
        except BaseException:
            parts.cache_size.keeping.close()
            raise
        try:
            parts.cache_size.check_longest_sequence(capacity)
            parts.cache_size.keeping.start(capacity)
        except InvalidConfig:
            parts.cache_size.keeping.close()
            parts.executor.shutdown()
            raise
        self._enter(capacity)
        return self._scheduler(capacity)

    def begin_asleep(self) -> Scheduler:
        """The first epoch begins with `wake_up`; until then nothing is on any device. Requests are
        admitted as if the cache held whatever they need, and checked again when they begin.
        """
        capacity = self._parts.cache_size.smallest()
        self._parts.admission.limits = replace(self._parts.cache_size.limits(capacity), num_blocks=sys.maxsize)
        return self._scheduler(capacity)

    def recover(self, failure: StepFailure, lost: list[SchedulerOutputs]) -> None:
        """The next epoch begins, and the request that made the step fail ends."""
        try:
            capacity, verdict = self._parts.recovery.recover(failure, lost, len(self._engine.requests))
        except EngineDead as dead:
            self._die(str(dead))
            return
        self._begin_anew(capacity, lost)
        if verdict is not None:
            self._engine.requests.fail(verdict.group, verdict.message, verdict.code)

    def change_weights(self, weights: Weights | None) -> None:
        """Every rank has these weights when this returns, or begins with them. Raises InvalidConfig
        if a rank cannot have them: then every rank has those from before. Raises EngineDead.
        """
        recovery, refusal = self._parts.recovery, None
        if not self.has_begun:
            self._parts.executor.prepare(weights)
            self.weights = weights
            return
        with self._giving_up():
            try:
                capacity = recovery.begin(weights, f"its weights are replaced by {weights or 'its own'}")
                self.weights = weights
            except InvalidConfig as error:
                refusal = error
                capacity = recovery.begin(self.weights, "its weights from before are loaded")
        self._begin_anew(capacity, [])
        if refusal is not None:
            raise refusal
        self._engine.requests.forget_untold()

    def sleep(self, level: int) -> None:
        """Free the cache, and on level 2 the weights, until `wake_up` or `change_weights`."""
        if self.has_begun:
            self._parts.executor.sleep(level)

    def wake_up(self) -> None:
        """Have what `sleep` has freed again; raises EngineDead."""
        with self._giving_up():
            if not self.has_begun:
                return self._engine.start()
            capacity = self._parts.recovery.wake()
        self._begin_anew(capacity, [])

    def _begin_anew(self, capacity: Capacity, lost: list[SchedulerOutputs]) -> None:
        self._enter(capacity)
        self._parts.cache_size.keeping.cleared(capacity)
        blocks = self._parts.cache_size.empty_blocks(capacity)
        self._parts.recorder.recovered(self._parts.requests.scheduler.requeue_all(blocks, lost))

    def _scheduler(self, capacity: Capacity) -> Scheduler:
        parts = self._parts
        parts.requests.scheduler = Scheduler(
            parts.config,
            parts.executor,
            parts.waiting,
            parts.cache_size.empty_blocks(capacity),
            swap_seconds_per_block=capacity.swap_seconds_per_block,
        )
        return parts.requests.scheduler

    def _enter(self, capacity: Capacity) -> None:
        parts = self._parts
        parts.admission.limits = parts.cache_size.limits(capacity)
        self.arithmetic = self._identity.of(capacity.arithmetic)
        self.fingerprint = fingerprint(self.arithmetic)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """For good, where workers cannot be started or replaced, or had no weights to load."""
        try:
            yield
        except (EngineDead, InvalidConfig, WorkerLost) as error:
            self._die(str(error))
            raise EngineDead(str(error)) from error

    def _die(self, message: str) -> None:
        self._engine.dead = message
        self._engine.requests.fail_all(message)
