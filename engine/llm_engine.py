"""The heart: schedule, execute, process. One thread's; `AsyncEngine` is for everybody else."""

import hashlib
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from engine import beam_search, decoding
from engine.batch import build_request, pack_params
from engine.block_manager import BlockManager
from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.detokenizer import Detokenizer
from engine.errors import EngineDead, InputProcessingError, InvalidConfig, InvalidRequest, WorkerLost
from engine.executor import Capacity, Executor
from engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, SamplerOutput
from engine.sampling_params import SamplingParams
from engine.scheduler import PreemptionCosts, ScheduledSequence, Scheduler, SchedulerOutputs
from engine.sequence import Sequence, SequenceGroup
from engine.stats import EngineStats
from engine.stopping import replay_text
from engine.tokenizer import Tokenizer

logger = logging.getLogger("squadron.engine")

# One level of priority is worth this many arrivals: a request is overtaken by so many later ones at most, so nobody starves.
ARRIVALS_PER_PRIORITY = 1000
# Seconds a token of prefill is taken to cost before any was measured.
INITIAL_PREFILL_SECONDS_PER_TOKEN = 1e-3


@dataclass(slots=True)
class _InFlight:
    plan: SchedulerOutputs
    future: Future[SamplerOutput]
    submitted: float


class LLMEngine:
    """Requests in, deltas out, a step at a time. Not thread-safe."""

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        executor: Executor,
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.executor = executor
        self.dead: str | None = None  # why the engine has given up
        self.detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.special_ids, model_config.vocab_size)
        self._groups: dict[str, SequenceGroup] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._outputs: list[RequestOutput] = []  # of requests that ended between steps
        self._seeds = random.Random(config.seed)
        self._num_arrivals = 0
        self._epoch = 0
        self._counts: dict[str, Any] = dict.fromkeys((field.name for field in fields(EngineStats)), 0)
        self._seconds = {"schedule": 0.0, "build": 0.0, "execute": 0.0, "process": 0.0}

    def start(self) -> None:
        """Start the workers; raises InvalidConfig or WorkerLost."""
        self.capacity = self._with_context(self.executor.start())
        self.scheduler = Scheduler(
            self._empty_blocks(),
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            long_prefill_token_threshold=self.config.long_prefill_token_threshold,
            watermark=self.config.watermark,
            depth=self.executor.depth,
            runs_ahead=self.executor.runs_ahead,
            costs=PreemptionCosts(self.capacity.swap_seconds_per_block, INITIAL_PREFILL_SECONDS_PER_TOKEN),
        )

    @property
    def max_model_len(self) -> int:
        return self.capacity.max_model_len

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups or self._in_flight or self._outputs)

    def step(self) -> list[RequestOutput]:
        """Schedule, execute, process."""
        while len(self._in_flight) < self.executor.depth and (plan := self._schedule()):
            self._in_flight.append(self._submit(plan))
        if not self._in_flight:
            return self._take_outputs()
        step = self._in_flight.popleft()
        try:
            output = self._result(step)
        except WorkerLost as lost:
            self._recover(lost)
            return self._take_outputs()
        return self._take_outputs() + self._process(step.plan, output)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        output_ids: Seq[Seq[int]] = (),
        attempt: int = 0,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float | None = None,
    ) -> None:
        """Queue a request; raises InvalidRequest if it could never run, EngineDead if nothing can.

        `output_ids` are the tokens each choice already has, from an earlier attempt: they count as outputs.
        """
        if self.dead is not None:
            raise EngineDead(self.dead)
        max_output_tokens = self.check_request(prompt_token_ids, params)
        if request_id in self._groups:
            raise InvalidRequest(
                f"request id {request_id!r} is running already", param="request_id", code="duplicate_id"
            )
        group = SequenceGroup(
            request_id=request_id,
            params=params,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            seqs=self._sequences(prompt_token_ids, output_ids),
            order=(self._num_arrivals + self._overtakes(priority), self._num_arrivals),
            seed=(params.seed if params.seed is not None else self._seeds.getrandbits(64)) % 2**64,
            max_output_tokens=max_output_tokens,
            stop_token_ids=frozenset(() if params.ignore_eos else self.model_config.eos_token_ids)
            | frozenset(params.stop_token_ids),
            metrics=RequestMetrics(time.monotonic() if arrival_time is None else arrival_time),
            num_unforked=1 if any(output_ids) or params.beam_width is not None else params.num_samples,
            attempt=attempt,
            cache_salt=hashlib.blake2b(cache_salt.encode(), digest_size=16).digest() if cache_salt else b"",
            bad_words_ids=self._bad_words(params),
            history_matters=params.has_penalties or bool(params.bad_words) or params.beam_width is not None,
            has_penalties=params.has_penalties,
            has_bias=bool(params.logit_bias or params.bad_words or params.min_tokens),
        )
        group.packed_params = pack_params(
            params, group.seed, beam_search.num_candidates(group) if params.beam_width else 0
        )
        for seq in group.seqs:
            replay_text(group, seq, self.detokenizer)
        self._num_arrivals += 1
        self._groups[request_id] = group
        self.scheduler.add(group)

    def check_request(self, prompt_token_ids: list[int], params: SamplingParams) -> int:
        """The most tokens the request may generate; raises InvalidRequest if it could not run alone on an empty cache.

        Depends on nothing that changes while the engine runs, so any thread may ask.
        """
        num_prompt, limit = len(prompt_token_ids), self.max_model_len
        if not num_prompt:
            raise InvalidRequest("the prompt is empty", param="prompt", code="empty_prompt")
        vocab_size = self.model_config.vocab_size
        bad = next((i for i in prompt_token_ids if not 0 <= i < vocab_size), None)
        if bad is not None:
            raise InvalidRequest(f"prompt token id {bad} is outside the vocabulary of {vocab_size}", param="prompt")
        for name, ids in (
            ("logit_bias", params.logit_bias or ()),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("stop_token_ids", params.stop_token_ids),
        ):
            bad = next((i for i in ids if i >= vocab_size), None)
            if bad is not None:
                raise InvalidRequest(f"{name}: token id {bad} is outside the vocabulary of {vocab_size}", param=name)
        blocks = self.scheduler.blocks
        room = min(limit, blocks.device.num_usable // params.num_samples * blocks.block_size) - num_prompt
        wanted = params.max_tokens if params.max_tokens is not None else max(room, 1)
        if num_prompt + wanted > limit:
            raise InvalidRequest(
                f"{num_prompt} prompt tokens and {wanted} to generate exceed the context of {limit}",
                param="prompt",
                code="context_length_exceeded",
            )
        needed = params.num_samples * blocks.num_blocks(num_prompt + wanted)
        if needed > blocks.device.num_usable:
            raise InvalidRequest(
                f"{params.num_samples} sequences of up to {num_prompt + wanted} tokens need {needed} cache blocks, "
                f"and there are {blocks.device.num_usable}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if params.num_samples > self.config.max_num_seqs:
            raise InvalidRequest(
                f"{params.num_samples} sequences exceed max_num_seqs={self.config.max_num_seqs}", param="n"
            )
        return wanted

    def abort_request(self, request_id: str) -> None:
        """Forget a request and free its blocks at once; no output follows. Unknown ids are ignored: it may just have ended."""
        group = self._groups.pop(request_id, None)
        if group is not None:
            for seq in group.live:
                seq.finish_reason = "abort"
            self.scheduler.finish(group)

    def fail_request(self, request_id: str, message: str) -> None:
        """End a request with an error; its neighbours go on."""
        group = self._groups.get(request_id)
        if group is not None:
            group.error = message
            for seq in group.live:
                seq.finish_reason = "error"
            self._outputs.append(self._close(group, []))

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error; returns their last outputs."""
        for request_id in list(self._groups):
            self.fail_request(request_id, message)
        return self._take_outputs()

    def stats(self) -> EngineStats:
        blocks, scheduler = self.scheduler.blocks, self.scheduler
        current = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "num_requests_swapped": len(scheduler.swapped),
            "num_gpu_blocks": blocks.device.num_usable,
            "num_free_gpu_blocks": blocks.device.num_free,
            "num_cpu_blocks": blocks.host.num_usable,
            "num_free_cpu_blocks": blocks.host.num_free,
            "num_prefix_queries": blocks.num_prefix_queries,
            "num_prefix_hits": blocks.num_prefix_hits,
            "num_preemptions_swap": scheduler.num_preemptions_swap,
            "num_preemptions_recompute": scheduler.num_preemptions_recompute,
            "num_wasted_tokens": scheduler.num_wasted_tokens,
        }
        seconds = {f"{name}_seconds": value for name, value in self._seconds.items()}
        return EngineStats(**(self._counts | current | seconds))

    def _schedule(self) -> SchedulerOutputs | None:
        started = time.monotonic()
        plan = self.scheduler.schedule()
        if plan is not None:
            for entry in plan.scheduled:
                if entry.group.metrics.first_scheduled_time is None:
                    entry.group.metrics.first_scheduled_time = started
        self._seconds["schedule"] += time.monotonic() - started
        return plan

    def _submit(self, plan: SchedulerOutputs) -> _InFlight:
        started = time.monotonic()
        request = build_request(plan, self.scheduler.blocks, self._epoch)
        submitted = time.monotonic()
        self._seconds["build"] += submitted - started
        return _InFlight(plan, self.executor.submit(request), submitted)

    def _result(self, step: _InFlight) -> SamplerOutput:
        started = time.monotonic()
        output = step.future.result()
        now = time.monotonic()
        self._seconds["execute"] += now - started
        self._measure_prefill(step, now)
        return output

    def _process(self, plan: SchedulerOutputs, output: SamplerOutput) -> list[RequestOutput]:
        started = time.monotonic()
        assert output.step == plan.step, f"step {plan.step} was answered by step {output.step}"
        rows = decoding.SampledRows(output, self.tokenizer)
        outputs: list[RequestOutput] = []
        row = 0
        for group, entries in _by_group(plan.scheduled):
            gained: list[CompletionOutput] = []
            has_news = False
            for entry in entries:
                first_row = row
                row += entry.num_prompt_rows + entry.num_samples
                if entry.num_samples:
                    entry.seq.num_pending -= 1
                if entry.seq.finish_reason is not None:
                    self._counts["num_discarded_rows"] += entry.num_samples
                elif row > first_row:
                    has_news = True
                    self._apply(entry, rows, first_row, gained)
            if has_news and (news := self._news(group, gained)) is not None:
                outputs.append(news)
        self._count(plan)
        self._seconds["process"] += time.monotonic() - started
        return outputs

    def _apply(
        self, entry: ScheduledSequence, rows: decoding.SampledRows, first_row: int, gained: list[CompletionOutput]
    ) -> None:
        """One sequence's rows of a step. Whatever goes wrong is its own request's trouble."""
        group, seq = entry.group, entry.seq
        sampled_row = first_row + entry.num_prompt_rows
        try:
            if not (rows.all_finite or all(rows.is_finite[first_row : sampled_row + entry.num_samples])):
                raise InputProcessingError("the model gave no finite probabilities for this request's next token")
            if entry.num_prompt_rows:
                decoding.take_prompt_logprobs(entry, rows, first_row)
            if entry.num_samples == 0:
                return
            if group.params.beam_width is not None:
                seq.candidates = rows.candidates(sampled_row, beam_search.num_candidates(group))
                return
            lines = [seq] if group.num_unforked == 1 else [seq, *self._fork(group, seq)]
            for line_row, line in enumerate(lines, start=sampled_row):
                gained.append(decoding.append_token(group, line, rows, line_row, self.detokenizer))
                if line.finish_reason is not None:
                    self.scheduler.blocks.free(line)
        except Exception as error:
            logger.warning("request %s failed: %s: %s", group.request_id, type(error).__name__, error)
            group.error = f"{type(error).__name__}: {error}"
            for line in group.live:
                line.finish_reason = "error"

    def _fork(self, group: SequenceGroup, parent: Sequence) -> list[Sequence]:
        """The prompt is computed: its other choices begin."""
        children = [parent.fork(choice) for choice in range(1, group.num_unforked)]
        for child in children:
            self.scheduler.blocks.fork(parent, child)
        group.seqs += children
        group.num_unforked = 1
        return children

    def _news(self, group: SequenceGroup, gained: list[CompletionOutput]) -> RequestOutput | None:
        """What the caller hears of a group after a step."""
        if group.metrics.first_token_time is None and gained:
            group.metrics.first_token_time = time.monotonic()
        if group.params.beam_width is not None and group.error is None:
            if not beam_search.advance(group, self.scheduler.blocks):
                return None
            return self._close(group, beam_search.results(group, self.tokenizer))
        if group.params.best_of is not None and group.error is None:
            group.held_outputs += gained
            return self._close(group, decoding.rank_best_of(group)) if group.finished else None
        if group.error is not None or (gained and gained[-1].finish_reason is not None and group.finished):
            return self._close(group, gained)
        return self._request_output(group, gained, finished=False) if gained else None

    def _close(self, group: SequenceGroup, gained: list[CompletionOutput]) -> RequestOutput:
        """The last output of a group, which leaves the engine."""
        group.metrics.finished_time = time.monotonic()
        if group.error is not None:
            gained = [decoding.failed(seq) for seq in group.seqs if seq.finish_reason == "error"]
        del self._groups[group.request_id]
        self.scheduler.finish(group)
        return self._request_output(group, gained, finished=True)

    def _request_output(self, group: SequenceGroup, gained: list[CompletionOutput], *, finished: bool) -> RequestOutput:
        prompt_logprobs = None
        if group.params.prompt_logprobs is not None and not group.prompt_logprobs_sent:
            prompt_logprobs = group.prompt_logprobs or [None]
            group.prompt_logprobs_sent = True
        return RequestOutput(
            group.request_id,
            group.attempt,
            group.prompt_token_ids,
            gained,
            finished,
            group.prompt,
            prompt_logprobs,
            group.num_cached_tokens,
            group.metrics,
            group.error,
        )

    def _recover(self, lost: WorkerLost) -> None:
        """A lost worker is a preemption of everybody: new workers, next epoch, and all sequences wait again."""
        self._in_flight.clear()
        logger.error("epoch %d: %s; %d requests in the engine", self._epoch, lost, len(self._groups))
        self._counts["num_recoveries"] += 1
        if self._counts["num_recoveries"] > self.config.max_restarts:
            self._give_up(f"{lost}; max_restarts={self.config.max_restarts} are used up")
            return
        try:
            self.capacity = self._with_context(self.executor.restart())
        except (WorkerLost, InvalidConfig) as error:
            self._give_up(f"{lost}; the restart failed: {error}")
            return
        self._epoch += 1
        self.scheduler.requeue_all(self._empty_blocks())

    def _give_up(self, reason: str) -> None:
        """No workers, no hope: every request ends with the reason, and none is taken any more."""
        logger.critical("the engine has stopped: %s", reason)
        self.dead = reason
        self._outputs += self.fail_all(reason)

    def _sequences(self, prompt_token_ids: list[int], output_ids: Seq[Seq[int]]) -> list[Sequence]:
        outputs = output_ids if any(output_ids) else [()]
        return [
            Sequence(choice, [*prompt_token_ids, *output], len(prompt_token_ids))
            for choice, output in enumerate(outputs)
        ]

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """Each word as it stands at the start of a text and after a space."""
        words = {tuple(self.tokenizer.encode_word(form)) for word in params.bad_words for form in (word, f" {word}")}
        return [list(word) for word in sorted(words) if word]

    def _overtakes(self, priority: int) -> int:
        return priority * ARRIVALS_PER_PRIORITY if self.config.scheduling_policy == "priority" else 0

    def _with_context(self, capacity: Capacity) -> Capacity:
        """The executor's capacity, its context cut to what was asked for and to what the cache can hold."""
        limit = min(capacity.max_model_len, resolve_max_model_len(self.config, self.model_config))
        in_cache = (capacity.num_gpu_blocks - 1) * self.config.block_size
        return Capacity(
            capacity.num_gpu_blocks, capacity.num_cpu_blocks, min(limit, in_cache), capacity.swap_seconds_per_block
        )

    def _empty_blocks(self) -> BlockManager:
        return BlockManager(
            self.capacity,
            block_size=self.config.block_size,
            max_num_seqs=self.config.max_num_seqs,
            enable_prefix_caching=self.config.enable_prefix_caching,
        )

    def _measure_prefill(self, step: _InFlight, now: float) -> None:
        """Follow the cost of a prefill token, which recomputing is judged by; steps of mostly decode rows tell little."""
        if step.plan.num_tokens >= 4 * max(len(step.plan.scheduled), 1):
            seconds = (now - step.submitted) / step.plan.num_tokens
            costs = self.scheduler.costs
            costs.prefill_seconds_per_token += 0.2 * (seconds - costs.prefill_seconds_per_token)

    def _count(self, plan: SchedulerOutputs) -> None:
        counts = self._counts
        num_samples = sum(entry.num_samples for entry in plan.scheduled)
        counts["num_steps"] += 1
        counts["num_generation_tokens"] += num_samples
        counts["num_prompt_tokens"] += plan.num_tokens - sum(entry.num_samples > 0 for entry in plan.scheduled)
        counts["num_blocks_swapped_out"] += len(plan.blocks_to_swap_out)
        counts["num_blocks_swapped_in"] += len(plan.blocks_to_swap_in)
        counts["num_blocks_copied"] += len(plan.blocks_to_copy)

    def _take_outputs(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs


def _by_group(scheduled: list[ScheduledSequence]) -> Iterator[tuple[SequenceGroup, list[ScheduledSequence]]]:
    """A plan's entries, those of a group together: they are neighbours."""
    index = 0
    while index < len(scheduled):
        group, first = scheduled[index].group, index
        while index < len(scheduled) and scheduled[index].group is group:
            index += 1
        yield group, scheduled[first:index]
