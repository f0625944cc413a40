"""The engine's core: schedule, execute, process. Single-threaded; other threads use
`AsyncEngine`.
"""

import time
from collections import deque
from concurrent.futures import Future

from engine.batch.batch import build_request
from engine.batch.masks import OwedMasks
from engine.core.epochs import Epochs
from engine.core.parts import Parts
from engine.errors import EngineDead, StepFailure
from engine.outputs import RequestOutput, SamplerOutput
from engine.records.stats import EngineStats
from engine.request import Arrival
from engine.scheduling.plan import SchedulerOutputs


class LLMEngine:
    """Requests in, deltas out, a step at a time. Not thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self.config = parts.config
        self.executor = parts.executor
        self.cache_size = parts.cache_size
        self.processor = parts.processor
        self.recorder = parts.recorder
        self.recovery = parts.recovery
        self.epochs = Epochs(self, parts)
        self.admission = parts.admission
        self.requests = parts.requests
        self.keeping = parts.cache_size.keeping
        self.dead: str | None = None  # why the engine has given up
        self.is_frozen = False  # begins no step: what runs stays as it is
        self._in_flight: deque[tuple[SchedulerOutputs, Future[SamplerOutput]]] = deque()
        self._masks = OwedMasks(parts.executor)
        self._handing_over = self.keeping.handing_over

    def start(self) -> None:
        """Start the workers; raises WorkerLost, or InvalidConfig, also if the cache cannot hold a
        sequence of max_model_len.
        """
        self.scheduler = self.epochs.start()

    def begin_asleep(self) -> None:
        """See `Epochs.begin_asleep`."""
        self.scheduler = self.epochs.begin_asleep()
        self.is_frozen = True

    def has_unfinished_requests(self) -> bool:
        return self.requests.are_unfinished or bool(self._in_flight) or self._moves_blocks

    @property
    def _moves_blocks(self) -> bool:
        """Whether steps are wanted that only keep blocks, or bring them."""
        return self.dead is None and self.scheduler.third_tier.wants_steps

    @property
    def is_quiet(self) -> bool:
        """Whether no step is in flight."""
        return not self._in_flight

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do now."""
        return bool(
            self._in_flight
            or self.requests.have_outputs
            or self.requests.are_late
            or ((self.requests.are_unfinished or self._moves_blocks) and not self.is_frozen)
        )

    def step(self) -> list[RequestOutput]:
        """Schedule, execute, process."""
        outputs = self._step()
        if not self._handing_over.holds:
            return outputs
        is_over = not (self._in_flight or self._moves_blocks)
        return self._handing_over.hold(outputs, self.scheduler.blocks.host_tier, is_over=is_over)

    def _step(self) -> list[RequestOutput]:
        self.requests.end_late()
        while not self.is_frozen and len(self._in_flight) < self.scheduler.budget.max_in_flight():
            if not self._submit_next():
                break
        self._send_masks()
        if not self._in_flight:
            return self.requests.take_outputs()
        waited_since = time.monotonic()
        plan, result = self._in_flight[0]
        try:
            output = result.result()
        except StepFailure as failure:
            self._recover(failure)
            return self.requests.take_outputs()
        self._in_flight.popleft()
        return self.requests.take_outputs() + self._process(plan, output, waited_since)

    def add_request(self, arrival: Arrival) -> None:
        """Queue a request; raises InvalidRequest if it could never run, EngineDead if nothing
        can.
        """
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.requests.add(arrival)

    def abort_request(self, request_id: str) -> None:
        """Drop a request and free its blocks at once; no output follows. Unknown ids are ignored,
        since it may just have ended.
        """
        self.requests.abort(request_id)

    def leave(self, most_blocks: int, done: "Future[None]") -> None:
        """Store, beside the steps, the blocks of all that runs, so many at most, for the engines
        that go on with it. `done` ends when they are stored; never, if the workers are lost before.
        """
        config = self.config
        if self.is_frozen or not config.kv_leaving_size:
            done.set_result(None)
            return
        self.scheduler.third_tier.leave(most_blocks, apart=config.kv_leaving_path is not None)
        self._handing_over.leave(self.scheduler.blocks.host_tier, done)

    def close(self) -> None:
        """Tell nobody of the cache any more. Idempotent."""
        self.keeping.close()

    def abandon(self, message: str) -> list[RequestOutput]:
        """Last outputs of all requests, whatever state a failed step has left: nothing else is
        changed or freed.
        """
        self._in_flight.clear()
        self._masks.clear()
        return self._handing_over.give_up() + self.requests.abandon(message)

    def stats(self) -> EngineStats:
        return self.recorder.stats(self.scheduler, self.processor.num_discarded_rows)

    def _submit_next(self) -> bool:
        """Schedule a step and submit it to the workers; False if there is nothing to do before a
        step in flight ends.
        """
        started = time.monotonic()
        plan = self.scheduler.schedule(len(self._in_flight))
        if not plan.is_empty:
            scheduled = time.monotonic()
            request = build_request(plan, self.scheduler.blocks, self.recovery.epoch)
            self.recorder.submitted(plan, request, started, scheduled, time.monotonic())
            self._in_flight.append((plan, self.executor.submit(request)))
            if request.awaits_masks:
                self._masks.owe(plan, request.epoch)
        self.requests.end_outgrown(plan.outgrown)
        return not plan.is_empty

    def _send_masks(self) -> None:
        for group, message, code in self._masks.send():
            if not group.is_over:
                self.requests.fail(group, message, code)

    def _process(self, plan: SchedulerOutputs, output: SamplerOutput, waited_since: float) -> list[RequestOutput]:
        assert output.step == plan.step, f"step {plan.step} was answered by step {output.step}"
        now = time.monotonic()
        self._handing_over.stored(plan.num_stored)
        seconds = self.recorder.arrived(plan, output, now)
        self.scheduler.preemption.costs.measured(plan, seconds)
        self.scheduler.budget.pace.measured(plan, output.execute_ns)
        if len(output.fetched):
            self.scheduler.third_tier.fetched(output.fetched.tolist(), len(output.execute_ns))
        outputs, ended = self.processor.process(plan, output, self.scheduler, now)
        self._send_masks()  # at once: workers may be waiting for them
        for group in ended:
            self.requests.remove(group)
        self.keeping.publish(self.scheduler.blocks)
        if (lives := self.scheduler.blocks.device.lives.take()) is not None:
            self.recorder.measures.blocks_lived(lives)
        self.recovery.stepped(self.recorder.processed(plan, waited_since))
        return outputs

    def _recover(self, failure: StepFailure) -> None:
        """A failed step preempts every sequence: the next epoch begins, all sequences wait again,
        the guilty request ends.
        """
        lost = [plan for plan, _ in self._in_flight]
        self._in_flight.clear()
        self._masks.clear()
        self.epochs.recover(failure, lost)
