"""The engine's figures, as values: made once per step, reported at the edges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine. Token and block counts are totals since the start unless they are
    called current.
    """

    num_requests_running: int  # current
    num_requests_waiting: int  # current
    num_requests_swapped: int  # current
    num_seqs_running: int  # current: the places that are taken; a request has as many choices, or beams
    num_seqs_waiting: int  # current, also those whose prompt another choice computes
    num_seqs_swapped: int  # current
    num_seqs_beginning: int  # current: of those running, whose request has no token yet
    num_beginning_tokens: int  # current, of the prompts of these requests
    num_requests_fetching: int  # current, of those waiting: for what the third tier has of their prompts
    num_requests_fetched: int  # current, of those waiting: it has been read
    num_waiting_tokens: int  # current, of the prompts of waiting requests
    num_seqs_returning: int  # current, of those waiting: that have had a token, and lost their place
    num_returning_tokens: int  # current, of the prompts of these requests
    num_requests_finished: int  # ended in whichever way
    num_seqs_finished: int
    num_gpu_blocks: int  # usable
    num_free_gpu_blocks: int  # current
    num_cpu_blocks: int
    num_free_cpu_blocks: int  # current
    num_steps: int
    num_prompt_tokens: int  # computed, recomputed ones counted again
    num_generation_tokens: int
    num_prefix_queries: int  # prompt tokens looked up in the prefix index
    num_prefix_hits: int
    num_external_queries: int  # of the tokens looked up, those not found on the device
    num_external_hits: int  # of these, those that the host or the folder had
    num_preemptions_swap: int
    num_preemptions_recompute: int
    num_wasted_tokens: int  # computed and thrown away by preemption
    num_discarded_rows: int  # sampled by a step built ahead, for a sequence that had ended
    num_blocks_swapped_out: int
    num_blocks_swapped_in: int
    num_blocks_copied: int
    num_blocks_stored: int  # in the folder
    num_blocks_fetched: int
    num_blocks_missed: int  # that the folder was believed to have
    num_recoveries: int  # lost workers replaced
    num_failed_steps: int  # raised an exception
    num_quarantined: int  # requests that caused either
    schedule_seconds: float
    build_seconds: float
    execute_seconds: float  # waited for the workers
    process_seconds: float

    def load(self, *, max_num_seqs: int, block_size: int, num_held_seqs: int = 0, num_held_tokens: int = 0) -> float:
        """How much of the engine's room its requests want: 1: all of its seats, or all of its
        cache; more if requests wait, also those that are held (`Intermissions.holds`).
        """
        num_seqs = self.num_seqs_running + self.num_seqs_waiting + self.num_seqs_swapped + num_held_seqs
        used = self.num_gpu_blocks - self.num_free_gpu_blocks
        tokens = used * block_size + self.num_waiting_tokens + num_held_tokens
        return max(num_seqs / max_num_seqs, tokens / (self.num_gpu_blocks * block_size))

    @property
    def kv_cache_usage(self) -> float:
        """0..1"""
        return 1 - self.num_free_gpu_blocks / self.num_gpu_blocks
