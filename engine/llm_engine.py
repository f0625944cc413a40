"""The heart: schedule, execute, process. One thread's; `AsyncEngine` is for everybody else."""

import logging
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from engine.admission import Admission
from engine.batch import build_request
from engine.block_manager import BlockManager
from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.errors import (
    CACHE_TOO_SMALL,
    REQUEST_QUARANTINED,
    STEP_FAILED,
    EngineDead,
    InvalidConfig,
    InvalidRequest,
    StepFailure,
    WorkerLost,
)
from engine.executor import Capacity, Executor
from engine.fingerprint import tokenizer_digest
from engine.limits import Limits
from engine.output_processor import OutputProcessor
from engine.outputs import Phase, RequestOutput, SamplerOutput
from engine.plan import SchedulerOutputs
from engine.preemption import PreemptionCosts
from engine.queues import Queues
from engine.recorder import Recorder
from engine.recovery import RestartBudget, Suspects
from engine.request import Arrival
from engine.scheduler import Scheduler
from engine.sequence import Lane, SequenceGroup
from engine.stats import EngineStats
from engine.timeline import StepRecord, Timeline
from engine.token_budget import StepLimits
from engine.tokenizer import Tokenizer
from engine.waiting_line import WaitingLine

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
        self.admission = Admission(config, tokenizer, self.processor.detokenizer)
        self.recorder = Recorder()
        self.dead: str | None = None  # why the engine has given up
        self.recovering: str | None = None  # from what, while workers are replaced
        self.budget = RestartBudget(config.max_restarts)
        self._failed_at: float | None = None  # until a step ends well again
        self._groups: dict[str, SequenceGroup] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._outputs: list[RequestOutput] = []  # of requests that ended between steps
        self._epoch = 0

    def start(self) -> None:
        """Start the workers; raises WorkerLost, or InvalidConfig, also where the cache holds no
        sequence of max_model_len.
        """
        self._adopt(self.executor.start())
        self._check_longest_sequence()
        limits = StepLimits(
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            long_prefill_token_threshold=self.config.long_prefill_token_threshold,
            min_stage_tokens=self.config.min_stage_tokens,
            depth=self.executor.depth,
            runs_ahead=self.executor.runs_ahead,
        )
        waiting = WaitingLine()
        costs = PreemptionCosts(self.capacity.swap_seconds_per_block)
        queues = Queues(self._empty_blocks(), waiting)
        self.scheduler = Scheduler(queues, limits, costs, watermark=self.config.watermark)
        self._suspects = Suspects(waiting)
        tokenizer = tokenizer_digest(self.config.tokenizer or self.config.model)
        self.arithmetic = {**self.capacity.arithmetic, "tokenizer": tokenizer}

    @property
    def timeline(self) -> Timeline:
        return self.recorder.timeline

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups or self._in_flight or self._outputs)

    def step(self) -> list[RequestOutput]:
        """Schedule, execute, process."""
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
        if request.resume.is_suspect:
            self._suspects.suspect(group)

    def abort_request(self, request_id: str) -> None:
        """Forget a request and free its blocks at once; no output follows. Unknown ids are ignored:
        it may just have ended.
        """
        group = self._groups.get(request_id)
        if group is not None:
            for seq in group.live:
                seq.finish_reason = "abort"
            self._remove(group)

    def fail_request(self, request_id: str, message: str, code: str | None = None) -> None:
        """End a request with an error, told by the next step; its neighbours go on."""
        group = self._groups[request_id]
        self._outputs.append(self.processor.fail(group, message, code))
        self._remove(group)

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error; returns their last outputs."""
        for request_id in list(self._groups):
            self.fail_request(request_id, message)
        return self._take_outputs()

    def abandon(self, message: str) -> list[RequestOutput]:
        """Last outputs for everybody, whatever state a failed step has left behind: nothing else is
        touched or freed.
        """
        outputs = self._take_outputs() + [self.processor.fail(group, message) for group in self._groups.values()]
        self._groups.clear()
        self._in_flight.clear()
        return outputs

    def stats(self) -> EngineStats:
        return self.recorder.stats(self.scheduler, self.processor.num_discarded_rows)

    def why(self, request_id: str) -> dict[Phase, float]:
        """Where the time of a running or lately finished request went, in seconds; the parts sum to
        its life so far.

        Raises KeyError for a request that is not known (any more).
        """
        group = self._groups.get(request_id)
        return self.recorder.why(request_id) if group is None else group.metrics.so_far(time.monotonic())

    def _next_step(self) -> _InFlight | None:
        """Schedule a step and hand it to the workers; None if there is nothing to do before a step
        in flight ends.
        """
        started = time.monotonic()
        plan = self.scheduler.schedule()
        step = None if plan.is_empty else self._submit(plan, started)
        self._end_what_outgrew_the_cache(plan.outgrown)
        return step

    def _submit(self, plan: SchedulerOutputs, started: float) -> _InFlight:
        scheduled = time.monotonic()
        request = build_request(plan, self.scheduler.blocks, self._epoch)
        record = self.recorder.submitted(plan, request, started, scheduled, time.monotonic())
        return _InFlight(plan, self.executor.submit(request), record)

    def _process(self, step: _InFlight, output: SamplerOutput, waited_since: float) -> list[RequestOutput]:
        record = step.record
        assert output.step == record.step, f"step {record.step} was answered by step {output.step}"
        record.finished = time.monotonic()
        record.execute_ns = tuple(output.execute_ns.tolist())
        self.scheduler.preemption.costs.measured(step.plan, record.finished - record.submitted)
        news = self.processor.process(step.plan, output, self.scheduler, record.finished)
        for group, told in news:
            if told.finished:
                self._remove(group)
        self.recorder.processed(step.plan, record, waited_since)
        self.budget.stepped()
        self._suspects.review()
        if self._failed_at is not None:
            logger.info("epoch %d: resumed after %.2f s", self._epoch, record.processed - self._failed_at)
            self._failed_at = None
        return [told for _, told in news]

    def _remove(self, group: SequenceGroup) -> None:
        del self._groups[group.request_id]
        group.is_over = True
        self.scheduler.finish(group)
        self.recorder.finished(group)
        self._suspects.review()

    def _recover(self, failure: StepFailure) -> None:
        """A failed step is a preemption of everybody: the next epoch begins, all sequences wait
        again, the guilty one ends.
        """
        self._failed_at = failed_at = time.monotonic()
        is_death = isinstance(failure, WorkerLost)
        failed = [entry for step in self._in_flight if step.plan.step == failure.step for entry in step.plan.scheduled]
        is_kill = isinstance(failure, WorkerLost) and self.executor.was_killed(failure)
        how = " (killed from outside)" if is_kill else ""
        logger.error("epoch %d: %s%s; %d requests in the engine", self._epoch, failure, how, len(self._groups))
        guilty = self._suspects.judge(failed, is_death=is_death, is_kill=is_kill)
        lost = [step.plan for step in self._in_flight]
        self._in_flight.clear()
        if guilty is not None:
            self.budget.convicted()
        self.recovering = str(failure)
        has_workers = self._restart(failure)
        self.recovering = None
        if not has_workers:
            return
        if is_death:
            seconds = time.monotonic() - failed_at
            why = "SIGKILL" if is_kill else failure.reason
            self.recorder.tell(
                f"rank {failure.rank} lost ({why}); replaced after {seconds:.1f} s; {len(self._groups)} "
                "stream(s) resumed"
            )
        self.recorder.recovered(self.scheduler.requeue_all(self._empty_blocks(), lost))
        if guilty is not None:
            self._quarantine(guilty, failure)

    def _restart(self, failure: StepFailure) -> bool:
        """Begin the next epoch, with other workers where some are lost; False if the engine has
        given up.
        """
        while True:
            if isinstance(failure, WorkerLost):
                self.recorder.num_recoveries += 1
                pause = self.budget.take()
                if pause is None:
                    self._give_up(f"{failure}; max_restarts={self.config.max_restarts} are used up")
                    return False
                time.sleep(pause)
            else:
                self.recorder.num_failed_steps += 1
            self._epoch += 1
            try:
                self._adopt(self.executor.restart())
                return True
            except WorkerLost as lost:
                logger.error("epoch %d: the restart failed: %s", self._epoch, lost)
                failure = lost
            except InvalidConfig as error:
                self._give_up(f"{failure}; the restart failed: {error}")
                return False

    def _quarantine(self, group: SequenceGroup, failure: StepFailure) -> None:
        self.recorder.num_quarantined += 1
        if isinstance(failure, WorkerLost):
            message = f"worker processes died whenever this request was computed ({failure}); it is not tried again"
            self.fail_request(group.request_id, message, REQUEST_QUARANTINED)
        else:
            message = f"each step with this request failed ({failure.reason})"
            self.fail_request(group.request_id, message, STEP_FAILED)
        self.recorder.tell(f"request {group.request_id} ended: {message}")

    def _end_what_outgrew_the_cache(self, lanes: list[Lane]) -> None:
        """It is less since workers were replaced: whoever needs more than all of it can never go
        on.
        """
        for lane in lanes:
            num_tokens = [seq.num_tokens for seq in lane.seqs]
            needed = sum(map(self.scheduler.blocks.num_blocks, num_tokens))
            message = (
                f"its {sum(num_tokens)} tokens so far need {needed} cache blocks, and there are "
                f"{self.scheduler.blocks.device.num_usable} since workers were replaced"
            )
            if not lane.group.is_over:
                self.fail_request(lane.group.request_id, message, CACHE_TOO_SMALL)

    def _give_up(self, reason: str) -> None:
        """No workers, no hope: every request ends with the reason, and none is taken any more."""
        logger.critical("the engine has stopped: %s", reason)
        self.recorder.tell(f"the engine has stopped: {reason}")
        self.dead = reason
        self._outputs += self.fail_all(reason)

    def _adopt(self, capacity: Capacity) -> None:
        self.capacity = capacity
        model = self.model_config
        self.admission.limits = Limits(
            self.max_model_len,
            capacity.num_gpu_blocks - 1,
            self.config.block_size,
            self.config.max_num_seqs,
            model.vocab_size,
            model.eos_token_ids,
        )

    def _check_longest_sequence(self) -> None:
        """A length that is served must not depend on the memory that was found: too little is
        refused, not made do with.
        """
        num_tokens = (self.capacity.num_gpu_blocks - 1) * self.config.block_size
        if num_tokens < self.max_model_len:
            self.executor.shutdown()
            whose = "" if self.config.max_model_len is not None else " (the model's)"
            raise InvalidConfig(
                f"max_model_len={self.max_model_len}{whose} does not fit a cache of {self.capacity.num_gpu_blocks} "
                f"blocks; set max_model_len to {num_tokens} or less, or give the cache more memory"
            )

    def _empty_blocks(self) -> BlockManager:
        return BlockManager(
            self.capacity,
            block_size=self.config.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.config.max_num_seqs,
        )

    def _take_outputs(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs
