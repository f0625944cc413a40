"""Records what the engine did: counts, times, the timeline of steps and where each request's time
went.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from engine.outputs import RequestMetrics, SamplerOutput, Why
from engine.records.measures import Measures
from engine.records.stats import EngineStats
from engine.records.timeline import StepRecord, Timeline
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import SequenceGroup, Status
from engine.step import ExecuteModelRequest

NUM_EVENTS_KEPT = 64
# Finished requests whose times are kept for `why`.
NUM_FINISHED_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Event:
    """An event for the operator, in one line."""

    number: int  # from 1 on
    text: str


class Recorder:
    """Holds values only: nothing is logged or sent from here."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.measures = Measures()
        self.num_recoveries = 0
        self.num_failed_steps = 0
        self.num_quarantined = 0
        self._in_flight: dict[int, StepRecord] = {}  # by step
        self._num_tokens_in_flight = 0
        self._last_arrived = 0.0
        self.events: tuple[Event, ...] = ()  # the last ones; replaced as a whole, so that any thread can read them
        self._beginning: list[SequenceGroup] = []  # admitted, and had no token when they were last looked at
        self._finished: OrderedDict[str, RequestMetrics] = OrderedDict()
        self._num_finished = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._rank_seconds = 0.0  # of each step's slowest rank
        self._num_blocks_swapped_out = 0
        self._num_blocks_swapped_in = 0
        self._num_blocks_copied = 0
        self._schedule_seconds = 0.0
        self._build_seconds = 0.0
        self._execute_seconds = 0.0
        self._process_seconds = 0.0

    def tell(self, text: str) -> None:
        number = self.events[-1].number + 1 if self.events else 1
        self.events = (*self.events[1 - NUM_EVENTS_KEPT :], Event(number, text))

    def submitted(
        self, plan: SchedulerOutputs, request: ExecuteModelRequest, started: float, scheduled: float, submitted: float
    ) -> None:
        """A step was scheduled, built and submitted at these times; record changes of requests'
        phases.
        """
        for group in plan.admitted:
            if group.metrics.first_scheduled_time is None:
                group.metrics.first_scheduled_time = started
                if not any(group.request.resume.output_ids):
                    self._beginning.append(group)
                group.worked_before = self._worked
                group.metrics.enter("prefill", started)
        for lane in plan.preempted:
            if all(other.status is not Status.RUNNING for other in lane.group.lanes):
                lane.group.metrics.enter("swap" if lane.status is Status.SWAPPED else "preemption", started)
        self._schedule_seconds += scheduled - started
        self._build_seconds += submitted - scheduled
        num_tokens = np.diff(request.query_starts)
        self._num_tokens_in_flight += plan.num_tokens
        self._in_flight[plan.step] = StepRecord(
            step=plan.step,
            epoch=request.epoch,
            request_ids=tuple([entry.group.request.id for entry in plan.scheduled]),
            choices=np.array([entry.seq.choice for entry in plan.scheduled], np.int32),
            starts=request.context_lens - num_tokens,
            num_tokens=num_tokens,
            num_samples=len(request.sampled_rows),
            num_swapped_out=len(plan.blocks_to_swap_out),
            num_swapped_in=len(plan.blocks_to_swap_in),
            num_copied=len(plan.blocks_to_copy),
            preempted=[lane.group.request.id for lane in plan.preempted],
            schedule_start=started,
            submitted=submitted,
        )

    def arrived(self, plan: SchedulerOutputs, output: SamplerOutput, now: float) -> float:
        """A step's results are here; returns the seconds since it was submitted."""
        record = self._in_flight[plan.step]
        record.finished = now
        record.execute_ns = tuple(output.execute_ns.tolist())
        self._rank_seconds += max(record.execute_ns, default=0) / 1e9
        self.timeline.times.took(plan.num_tokens, now - max(record.submitted, self._last_arrived))
        self._last_arrived = now
        self._num_tokens_in_flight -= plan.num_tokens
        self.measures.tokens_came(plan, now)
        return now - record.submitted

    def processed(self, plan: SchedulerOutputs, waited_since: float) -> float:
        """A step's results have been applied; returns the time."""
        record = self._in_flight.pop(plan.step)
        record.processed = time.monotonic()
        self._execute_seconds += record.finished - waited_since
        self._process_seconds += record.processed - record.finished
        self._num_steps += 1
        num_plain = len(plan.scheduled) - len(plan.others)
        samples = [entry.num_samples for entry in plan.others]
        num_sampled = num_plain + sum([num > 0 for num in samples])  # sequences
        self._num_generation_tokens += num_plain + sum(samples) - plan.num_rejected - plan.num_discarded
        self._num_prompt_tokens += plan.num_tokens - plan.num_drafts - num_sampled
        if plan.num_drafts:
            self._checked_drafts(plan, record)
        self._num_blocks_swapped_out += record.num_swapped_out
        self._num_blocks_swapped_in += record.num_swapped_in
        self._num_blocks_copied += record.num_copied
        self.measures.stepped(plan.num_tokens, record.execute_ns)
        self.timeline.records.append(record)
        return record.processed

    def _checked_drafts(self, plan: SchedulerOutputs, record: StepRecord) -> None:
        record.num_drafts = [len(entry.drafts) for entry in plan.scheduled]
        record.num_accepted = [entry.num_accepted for entry in plan.scheduled]
        for entry in plan.others:
            if entry.was_checked:
                self.measures.drafted(len(entry.drafts), entry.num_accepted)

    def recovered(self, groups: list[SequenceGroup]) -> None:
        """The steps in flight are lost, and these requests wait again."""
        self._in_flight.clear()
        self._num_tokens_in_flight = 0
        now = time.monotonic()
        for group in groups:
            group.metrics.enter("recovery", now)

    def finished(self, group: SequenceGroup) -> None:
        group.metrics.finish(time.monotonic())
        if group.metrics.first_scheduled_time is not None:
            before, now = group.worked_before, self._worked
            group.metrics.scheduler_seconds, group.metrics.execute_seconds = now[0] - before[0], now[1] - before[1]
        self._num_finished += 1
        self.measures.finished(group)
        self._finished[group.request.id] = group.metrics
        if len(self._finished) > NUM_FINISHED_KEPT:
            self._finished.popitem(last=False)

    @property
    def seconds_in_flight(self) -> float | None:
        """That the steps in flight take at most, by earlier ones; None if there were none. From any
        thread.
        """
        num_tokens = self._num_tokens_in_flight
        return self.timeline.times.expected(num_tokens) if num_tokens else 0.0

    @property
    def _worked(self) -> tuple[float, float]:
        """Seconds that steps were scheduled, and that the slowest rank of each worked."""
        return self._schedule_seconds, self._rank_seconds

    def last_ended(self, most: int) -> list[tuple[str, RequestMetrics]]:
        """The requests that ended last, newest first."""
        return list(self._finished.items())[: -most - 1 : -1]

    def why(self, request_id: str) -> Why:
        """Of a recently finished request; raises KeyError for an unknown or forgotten one."""
        return self._finished[request_id].why(time.monotonic())

    def stats(self, scheduler: Scheduler, num_discarded_rows: int) -> EngineStats:
        blocks, queues, preemption = scheduler.blocks, scheduler.queues, scheduler.preemption
        shelf, (num_aside, num_aside_tokens) = blocks.last_shelf, scheduler.third_tier.fetching.aside()
        num_fetching, num_fetched = scheduler.third_tier.fetching.counts()
        num_beginning, num_beginning_tokens = self._count_beginning()
        return EngineStats(
            num_requests_running=len(queues.running_groups),
            num_requests_waiting=queues.waiting.counted.num_requests + num_aside,
            num_requests_swapped=len(queues.swapped_groups),
            num_seqs_running=queues.num_places,
            num_seqs_waiting=queues.num_places_wanted,
            num_seqs_swapped=queues.num_places_swapped,
            num_seqs_beginning=num_beginning,
            num_beginning_tokens=num_beginning_tokens,
            num_requests_fetching=num_fetching,
            num_requests_fetched=num_fetched,
            num_waiting_tokens=queues.waiting.counted.num_tokens + num_aside_tokens,
            num_seqs_returning=queues.waiting.returning.num_places,
            num_returning_tokens=queues.waiting.returning.num_tokens,
            num_requests_finished=self._num_finished,
            num_seqs_finished=queues.num_seqs_finished,
            num_gpu_blocks=blocks.device.num_usable,
            num_free_gpu_blocks=blocks.device.num_free,
            num_cpu_blocks=blocks.host.num_usable,
            num_free_cpu_blocks=blocks.host.num_free,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_prefix_queries=blocks.num_prefix_queries,
            num_prefix_hits=blocks.num_prefix_hits,
            num_external_queries=blocks.host_tier.num_queries,
            num_external_hits=blocks.host_tier.num_hits,
            num_preemptions_swap=preemption.num_swaps,
            num_preemptions_recompute=preemption.num_recomputes,
            num_wasted_tokens=preemption.num_wasted_tokens,
            num_discarded_rows=num_discarded_rows,
            num_blocks_swapped_out=self._num_blocks_swapped_out,
            num_blocks_swapped_in=self._num_blocks_swapped_in,
            num_blocks_copied=self._num_blocks_copied,
            num_blocks_stored=0 if shelf is None else shelf.num_stored,
            num_blocks_fetched=0 if shelf is None else shelf.num_fetched,
            num_blocks_missed=0 if shelf is None else shelf.num_missed,
            num_recoveries=self.num_recoveries,
            num_failed_steps=self.num_failed_steps,
            num_quarantined=self.num_quarantined,
            schedule_seconds=self._schedule_seconds,
            build_seconds=self._build_seconds,
            execute_seconds=self._execute_seconds,
            process_seconds=self._process_seconds,
        )

    def _count_beginning(self) -> tuple[int, int]:
        """Places taken by requests without a token, and the tokens of their prompts."""
        self._beginning = [
            group for group in self._beginning if not group.is_over and group.metrics.first_token_time is None
        ]
        places = [
            sum(lane.num_places for lane in group.lanes if lane.status is Status.RUNNING) for group in self._beginning
        ]
        tokens = [len(group.prompt_token_ids) for group in self._beginning]
        return sum(places), sum(num for num, held in zip(tokens, places, strict=True) if held)
