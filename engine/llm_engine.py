"""The engine's core: schedule, execute, process. Single-threaded; other threads use
`AsyncEngine`.
"""

import logging
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from engine.admission import cache_size
from engine.admission.admission import Admission
from engine.admission.deadlines import Deadlines
from engine.batch.batch import build_request
from engine.checkpoint.fingerprint import tokenizer_digest
from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig
from engine.errors import CACHE_TOO_SMALL, DEADLINE_EXCEEDED, EngineDead, InvalidConfig, InvalidRequest, StepFailure
from engine.executor import Capacity, Executor
from engine.grammars.kept import Grammars
from engine.output.output_processor import OutputProcessor
from engine.outputs import Phase, RequestOutput, SamplerOutput
from engine.records.recorder import Recorder
from engine.records.stats import EngineStats
from engine.records.timeline import StepRecord, Timeline
from engine.recovery.recovery import Recovery
from engine.request import Arrival
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Lane, SequenceGroup
from engine.scheduling.token_budget import step_limits
from engine.scheduling.waiting_line import WaitingLine
from engine.text.tokenizer import Tokenizer

logger = logging.getLogger("squadron.engine")


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: SchedulerOutputs
    future: Future[SamplerOutput]
    record: StepRecord


class LLMEngine:
    """Requests in, deltas out, a step at a time. Not thread-safe."""

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, tokenizer: Tokenizer, executor: Executor
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.executor = executor
        self.max_model_len = resolve_max_model_len(config, model_config)
        self.processor = OutputProcessor(tokenizer, model_config.vocab_size)
        grammars = Grammars(tokenizer, model_config.vocab_size, model_config.eos_token_ids)
        self.admission = Admission(config, tokenizer, self.processor.detokenizer, grammars)
        self.recorder = Recorder()
        self._waiting = WaitingLine()
        self.recovery = Recovery(executor, self._waiting, self.recorder, config.max_restarts)
        self.dead: str | None = None  # why the engine has given up
        self._groups: dict[str, SequenceGroup] = {}
        self._deadlines = Deadlines()
        self._in_flight: deque[_InFlight] = deque()
        self._outputs: list[RequestOutput] = []  # of requests that ended between steps

    def start(self) -> None:
        """Start the workers; raises WorkerLost, or InvalidConfig, also if the cache cannot hold a
        sequence of max_model_len.
        """
        capacity = self.executor.start()
        try:
            cache_size.check_longest_sequence(capacity, self.config, self.max_model_len)
        except InvalidConfig:
            self.executor.shutdown()
            raise
        self.scheduler = Scheduler(
            self._waiting,
            self._adopt(capacity),
            step_limits(self.config, self.executor),
            swap_seconds_per_block=capacity.swap_seconds_per_block,
            watermark=self.config.watermark,
        )
        tokenizer = tokenizer_digest(self.config.tokenizer or self.config.model)
        self.arithmetic = {**capacity.arithmetic, "tokenizer": tokenizer}

    @property
    def timeline(self) -> Timeline:
        return self.recorder.timeline

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups or self._in_flight or self._outputs)

    def step(self) -> list[RequestOutput]:
        """Schedule, execute, process."""
        self._end_what_is_late()
        while len(self._in_flight) < self.executor.depth and (step := self._next_step()):
            self._in_flight.append(step)
        if not self._in_flight:
            return self._take_outputs()
        waited_since = time.monotonic()
        try:
            output = self._in_flight[0].future.result()
        except StepFailure as failure:
            self._recover(failure)
            return self._take_outputs()
        return self._take_outputs() + self._process(self._in_flight.popleft(), output, waited_since)

    def add_request(self, arrival: Arrival) -> None:
        """Queue a request; raises InvalidRequest if it could never run, EngineDead if nothing
        can.
        """
        if self.dead is not None:
            raise EngineDead(self.dead)
        request = arrival.request
        if request.id in self._groups:
            raise InvalidRequest(
                f"request id {request.id!r} is running already", param="request_id", code="duplicate_id"
            )
        group = self.admission.make_group(arrival)
        if group.finished:  # its output tokens were the whole answer
            self._outputs.append(self.processor.conclude(group))
            return
        self._groups[request.id] = group
        self.scheduler.add(group)
        if request.timeout is not None:
            self._deadlines.add(group, arrival.time + request.timeout)
        if request.resume.is_suspect:
            self.recovery.suspects.suspect(group)

    def abort_request(self, request_id: str) -> None:
        """Drop a request and free its blocks at once; no output follows. Unknown ids are ignored,
        since it may just have ended.
        """
        group = self._groups.get(request_id)
        if group is not None:
            for seq in group.live:
                seq.finish_reason = "abort"
            self._remove(group)

    def fail_request(self, request_id: str, message: str, code: str | None = None) -> None:
        """End a request with an error, which the next step returns; other requests continue."""
        group = self._groups[request_id]
        self._outputs.append(self.processor.fail(group, message, code))
        self._remove(group)

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error; returns their last outputs."""
        for request_id in list(self._groups):
            self.fail_request(request_id, message)
        return self._take_outputs()

    def abandon(self, message: str) -> list[RequestOutput]:
        """Last outputs of all requests, whatever state a failed step has left: nothing else is
        changed or freed.
        """
        outputs = self._take_outputs() + [self.processor.fail(group, message) for group in self._groups.values()]
        self._groups.clear()
        self._in_flight.clear()
        return outputs

    def stats(self) -> EngineStats:
        return self.recorder.stats(self.scheduler, self.processor.num_discarded_rows)

    def why(self, request_id: str) -> dict[Phase, float]:
        """Where the time of a running or lately finished request went, in seconds; the parts sum to
        its life so far. Raises KeyError for an unknown or forgotten request.
        """
        group = self._groups.get(request_id)
        return self.recorder.why(request_id) if group is None else group.metrics.so_far(time.monotonic())

    def _end_what_is_late(self) -> None:
        for group in self._deadlines.passed(time.monotonic()):
            message = f"its answer was not complete within its timeout ({group.request.timeout:g} s were left here)"
            self.fail_request(group.request.id, message, DEADLINE_EXCEEDED)

    def _next_step(self) -> _InFlight | None:
        """Schedule a step and submit it to the workers; None if there is nothing to do before a
        step in flight ends.
        """
        started = time.monotonic()
        plan = self.scheduler.schedule()
        step = None if plan.is_empty else self._submit(plan, started)
        self._end_what_outgrew_the_cache(plan.outgrown)
        return step

    def _submit(self, plan: SchedulerOutputs, started: float) -> _InFlight:
        scheduled = time.monotonic()
        request = build_request(plan, self.scheduler.blocks, self.recovery.epoch)
        record = self.recorder.submitted(plan, request, started, scheduled, time.monotonic())
        return _InFlight(plan, self.executor.submit(request), record)

    def _process(self, step: _InFlight, output: SamplerOutput, waited_since: float) -> list[RequestOutput]:
        record = step.record
        assert output.step == record.step, f"step {record.step} was answered by step {output.step}"
        record.finished = time.monotonic()
        record.execute_ns = tuple(output.execute_ns.tolist())
        self.scheduler.preemption.costs.measured(step.plan, record.finished - record.submitted)
        self.recorder.measures.tokens_came(step.plan, record.finished)
        news = self.processor.process(step.plan, output, self.scheduler, record.finished)
        for group, told in news:
            if told.finished:
                self._remove(group)
        self.recorder.processed(step.plan, record, waited_since)
        self.recovery.stepped(record.processed)
        return [told for _, told in news]

    def _remove(self, group: SequenceGroup) -> None:
        del self._groups[group.request.id]
        group.is_over = True
        self._deadlines.remove(group)
        self.scheduler.finish(group)
        self.recorder.finished(group)
        self.recovery.suspects.review()

    def _recover(self, failure: StepFailure) -> None:
        """A failed step preempts every sequence: the next epoch begins, all sequences wait again,
        the guilty request ends.
        """
        lost = [step.plan for step in self._in_flight]
        self._in_flight.clear()
        try:
            capacity, verdict = self.recovery.recover(failure, lost, len(self._groups))
        except EngineDead as dead:
            self._give_up(str(dead))
            return
        self.recorder.recovered(self.scheduler.requeue_all(self._adopt(capacity), lost))
        if verdict is not None:
            self.fail_request(verdict.group.request.id, verdict.message, verdict.code)

    def _end_what_outgrew_the_cache(self, lanes: list[Lane]) -> None:
        """The cache may be smaller after workers were replaced: lanes that need more than all of it
        can never continue.
        """
        for lane in lanes:
            if not lane.group.is_over:
                message = cache_size.outgrown_message(lane, self.scheduler.blocks)
                self.fail_request(lane.group.request.id, message, CACHE_TOO_SMALL)

    def _give_up(self, reason: str) -> None:
        """There are no workers any more: every request ends with the reason, and no new one is
        accepted.
        """
        logger.critical("the engine has stopped: %s", reason)
        self.recorder.tell(f"the engine has stopped: {reason}")
        self.dead = reason
        self._outputs += self.fail_all(reason)

    def _adopt(self, capacity: Capacity) -> BlockManager:
        """Limit requests by the current cache; returns its blocks, all free."""
        limits = cache_size.request_limits(capacity, self.config, self.model_config, self.max_model_len)
        self.admission.limits = limits
        return cache_size.empty_blocks(capacity, self.config, self.max_model_len)

    def _take_outputs(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs
