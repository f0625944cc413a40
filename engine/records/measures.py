"""What an engine counts for its operator beside `EngineStats`: histograms, and seconds by phase and
rank.
"""

from dataclasses import dataclass, field
from operator import add

from engine.outputs import Phase
from engine.records.histogram import BETWEEN_TOKENS, OF_A_BLOCK, OF_A_REQUEST, OF_A_STEP, PREEMPTIONS, Histogram
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.sequence import SequenceGroup
from engine.scheduling.tiers.block_lives import Lives

_DISTURBED: tuple[Phase, ...] = ("preemption", "swap", "recovery")


@dataclass(frozen=True, slots=True)
class Drafts:
    """Guessed tokens that steps have checked; see `engine.scheduling.drafts`."""

    num_drafts: int = 0  # of one token or more
    num_tokens: int = 0
    num_accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by place in the draft


@dataclass(frozen=True, slots=True)
class Measured:
    """A copy of an engine's `Measures`; totals since its start. `histograms` by the name of the
    metric, each as `Histogram.values`; seconds by phase and by rank.
    """

    num_prompt_tokens: int = 0  # of requests that have had a token, or were pooled, each once
    num_cached_tokens: int = 0  # of these, those found in the cache
    num_tokens: int = 0  # generated, without those thrown away
    recovery_seconds: float = 0.0  # from a failed step to the end of the next one that succeeded
    phase_seconds: dict[str, float] = field(default_factory=dict)  # of requests that have ended
    rank_seconds: list[float] = field(default_factory=list)  # each rank's own work
    histograms: dict[str, list[float]] = field(default_factory=dict)
    drafts: Drafts = field(default_factory=Drafts)
    num_host_tokens: int = 0  # of the cached ones, those found on the host
    num_brought_tokens: int = 0  # of these, those that the third tier was read for
    num_corrupted: int = 0  # requests whose numbers were not finite


class Measures:
    """Written by the engine's thread, a few numbers per step and per ended request; read by any."""

    def __init__(self) -> None:
        self.recovery_seconds = 0.0
        # Tokens: all, cached, of these on the host, of these brought from the third tier. One value
        # that another thread copies: a part of another time than the rest could fall.
        self._of_prompts = (0, 0, 0, 0)
        self._num_corrupted = 0
        self._num_tokens = 0
        self._phase_seconds: dict[Phase, float] = dict.fromkeys(("queue", "prefill", "decode", *_DISTURBED), 0.0)
        self._rank_ns: list[int] = []
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._accepted_at: list[int] = []
        self._between_tokens = Histogram(BETWEEN_TOKENS)
        self._of_a_step = Histogram(OF_A_STEP)
        self._queue, self._prefill = Histogram(OF_A_REQUEST), Histogram(OF_A_REQUEST)
        self._decode, self._inference = Histogram(OF_A_REQUEST), Histogram(OF_A_REQUEST)
        self._preemptions = Histogram(PREEMPTIONS)
        self._of_blocks = {name: Histogram(OF_A_BLOCK) for name in ("lifetime", "idle_before_evict", "reuse_gap")}

    def tokens_came(self, plan: SchedulerOutputs, now: float) -> None:
        """A step's tokens are here, and not applied yet. The time since a sequence's last token is
        mostly the same as its neighbour's: a run of such sequences is one entry.
        """
        step, previous, run = plan.step, 0.0, 0
        for entry in plan.scheduled:
            if entry.num_samples:
                seq = entry.seq
                if seq.finish_reason is None and step >= seq.first_valid_step:
                    then = seq.token_time
                    if then is not previous:
                        self._ran(previous, run, now)
                        previous, run = then, 0
                    run += 1
                    seq.token_time = now
                    if then == 0.0 and seq is entry.group.seqs[0]:
                        self._count_prompt(entry.group)
        self._ran(previous, run, now)

    def _ran(self, then: float, run: int, now: float) -> None:
        self._num_tokens += run
        if then:
            self._between_tokens.observe(now - then, run)

    def _count_prompt(self, group: SequenceGroup) -> None:
        """A request that goes on here was counted where it began."""
        if not any(group.request.resume.output_ids):
            counted = len(group.prompt_token_ids), group.num_cached_tokens, group.num_host_tokens
            self._of_prompts = tuple(map(add, self._of_prompts, (*counted, group.num_brought_tokens)))

    def drafted(self, num_tokens: int, num_accepted: int) -> None:
        """A draft was checked; the tokens that it brought were not counted when the step came."""
        self._num_drafts += 1
        self._num_draft_tokens += num_tokens
        self._num_tokens += num_accepted
        self._accepted_at += [0] * (num_tokens - len(self._accepted_at))
        for place in range(num_accepted):
            self._accepted_at[place] += 1

    def stepped(self, num_tokens: int, execute_ns: tuple[int, ...]) -> None:
        self._of_a_step.observe(num_tokens)
        if len(self._rank_ns) < len(execute_ns):
            self._rank_ns += [0] * (len(execute_ns) - len(self._rank_ns))
        for rank, nanoseconds in enumerate(execute_ns):
            self._rank_ns[rank] += nanoseconds

    def blocks_lived(self, lives: Lives) -> None:
        """What has become of blocks of the device."""
        for histogram, times in zip(self._of_blocks.values(), lives, strict=True):
            for seconds in times:
                histogram.observe(seconds)

    def finished(self, group: SequenceGroup) -> None:
        """The request has ended, and so have its times."""
        seconds = group.metrics.seconds
        for phase, spent in seconds.items():
            self._phase_seconds[phase] += spent
        is_pooled = group.pooling is not None and group.seqs[0].finish_reason == "stop"
        if is_pooled:
            self._count_prompt(group)
        self._num_corrupted += group.is_corrupted
        if group.error is None and (is_pooled or group.metrics.first_token_time is not None):
            prefill, decode = seconds.get("prefill", 0.0), seconds.get("decode", 0.0)
            self._queue.observe(seconds.get("queue", 0.0))
            self._prefill.observe(prefill)
            self._decode.observe(decode)
            self._preemptions.observe(group.metrics.num_preemptions)
            self._inference.observe(prefill + decode + sum(seconds.get(phase, 0.0) for phase in _DISTURBED))

    def copy(self) -> Measured:
        num_prompt_tokens, num_cached_tokens, num_host_tokens, num_brought_tokens = self._of_prompts
        return Measured(
            num_prompt_tokens,
            num_cached_tokens,
            self._num_tokens,
            self.recovery_seconds,
            {str(phase): seconds for phase, seconds in self._phase_seconds.items()},
            [nanoseconds / 1e9 for nanoseconds in self._rank_ns],
            {
                "inter_token_latency_seconds": self._between_tokens.values(),
                "iteration_tokens_total": self._of_a_step.values(),
                "request_queue_time_seconds": self._queue.values(),
                "request_prefill_time_seconds": self._prefill.values(),
                "request_decode_time_seconds": self._decode.values(),
                "request_inference_time_seconds": self._inference.values(),
                "request_num_preemptions": self._preemptions.values(),
                **{f"kv_block_{name}_seconds": each.values() for name, each in self._of_blocks.items()},
            },
            Drafts(self._num_drafts, self._num_draft_tokens, sum(self._accepted_at), list(self._accepted_at)),
            num_host_tokens,
            num_brought_tokens,
            self._num_corrupted,
        )
