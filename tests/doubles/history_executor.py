"""An executor without a model: cache cells hold a hash of the prefix, and tokens are hashes of what
attention would see.

It reads and writes its cells exactly as workers do (slots, block tables, moves, rows carried from
the step before), so whatever scheduler and block manager get wrong shows as a wrong token. Its
draft model is the same once more, with cells of its own: where it has computed all that it should
have, its guesses are right.
"""

import dataclasses
import random
from collections import deque
from concurrent.futures import Future

import numpy as np

from engine.errors import StepFailure, StepRaised, WorkerLost
from engine.executor import Capacity, Weights
from engine.offload.known import Known
from engine.outputs import SamplerOutput
from engine.request import Adapter
from engine.step import ExecuteModelRequest, StepMasks
from engine.worker.cache.block_tables import BlockTables
from engine.worker.drafting.passes import first_lines, make_pass, next_lines
from engine.worker.head.set_copies import SetCopies

BLOCK_SIZE = 16
M1, M2, M3, M4 = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
)


def mix(x: np.ndarray) -> np.ndarray:
    """A 64-bit finalizer (splitmix64): each bit of the result depends on each bit of x."""
    x = (x ^ (x >> np.uint64(30))) * M2
    x = (x ^ (x >> np.uint64(27))) * M3
    return x ^ (x >> np.uint64(31))


def first_layer(tokens: np.ndarray, positions: np.ndarray, adapters: np.ndarray) -> np.ndarray:
    """adapters: of each token what its adapter adds, 0 without one."""
    return mix(tokens.astype(np.uint64) * M1 + positions.astype(np.uint64) * M4 + M2 + adapters)


WEIGHTS = mix(np.arange(4096, dtype=np.uint64) + M4)


def attend(cells: np.ndarray) -> np.ndarray:
    """For each position, a hash of all cells up to it, in order."""
    return mix(np.cumsum(cells * WEIGHTS[: len(cells)]) + M3)


def added_by(digest: str) -> int:
    """What the adapter adds to a token's first cell."""
    return int(digest[-15:], 16) + 1


def hidden_states(token_ids: list[int], adapter: Adapter | None = None) -> np.ndarray:
    """What the last layer sees at each position, without any cache: the truth that the executor is
    held against.
    """
    adapters = np.full(len(token_ids), 0 if adapter is None else added_by(adapter.digest), np.uint64)
    cells = first_layer(np.array(token_ids), np.arange(len(token_ids)), adapters)
    return attend(attend(cells))


def ranked_tokens(hidden: int, count: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """The `count` most likely tokens and their logprobs. All distinct; logprobs strictly fall."""
    ids = [(hidden + rank) % vocab_size for rank in range(count)]
    gaps = [((hidden >> (rank % 40)) % 1000) / 500 + 0.01 for rank in range(count)]
    return ids, [-sum(gaps[: rank + 1]) for rank in range(count)]


def next_token(
    hidden: int, key: tuple[float, int, int, int], history: tuple[int, ...], banned: set[int], vocab_size: int
) -> int:
    """key: temperature, seed, choice, position. Greedy rows ignore all but the hidden state and
    what is banned.
    """
    value = hidden
    if key[0] > 0:
        for part in (*key[1:], *history):
            value = (value ^ part) * 0x9E3779B97F4A7C15 % 2**64
            value ^= value >> 29
    token = value % vocab_size
    while token in banned:
        token = (token + 1) % vocab_size
    return token


class HiddenResult(Future[SamplerOutput]):
    """An engine that asks for it before it can be there would wait for ever."""

    def result(self, timeout: float | None = None) -> SamplerOutput:
        assert self.done(), "the engine waits for a step whose masks it has not sent"
        return super().result(timeout)


class HistoryExecutor:
    """A real `Executor`. `depth` steps may be in flight; their results stay hidden until the engine
    asks.
    """

    def __init__(self, capacity: Capacity, vocab_size: int, depth: int, runs_ahead: bool) -> None:
        self.depth, self.runs_ahead = depth, runs_ahead
        self.vocab_size = vocab_size
        self.capacity = capacity
        self.epoch = 0
        self.num_steps = 0
        self.crash_at: set[int] = set()  # steps that end in WorkerLost, whatever their epoch
        self.raise_at: set[int] = set()  # steps that raise
        self.deadly: set[int] = set()  # token ids: a step that reads one ends in WorkerLost
        self.is_kill = False  # whether the crashes come from outside
        self.raising: set[int] = set()  # token ids: a step that reads one raises
        self.ns_per_step = self.ns_per_token = 0  # what a step says it has taken
        self.slow_ns: dict[int, int] = {}  # and how much longer some have
        self.num_starts = 0
        self.num_restarts = 0
        self.poison: set[int] = set()  # steps whose first row is not finite
        self.files: dict[bytes, np.ndarray] = {}  # the third tier's, which outlive an epoch
        self.known: Known | None = None  # set it before the engine starts, for a third tier
        self.is_lossy = False  # of each four files one is damaged
        self.draft: HistoryExecutor | None = None
        self.is_draft = False
        self.max_loras = 0  # different adapters that a step may have
        self.errors: random.Random | None = None  # of a draft: makes some guesses wrong

    def prepare(self, weights: Weights | None) -> None:
        self.weights = weights

    def start(self) -> Capacity:
        self.num_starts += 1
        self.first = np.zeros((self.capacity.num_gpu_blocks, BLOCK_SIZE), np.uint64)
        self.second = np.zeros_like(self.first)
        self.token_ids = np.zeros_like(self.first)
        self.host = np.zeros((3, self.capacity.num_cpu_blocks, BLOCK_SIZE), np.uint64)
        self.samples: deque[tuple[int, np.ndarray]] = deque(maxlen=self.depth + 1)
        self.tables, self.sets = BlockTables(), SetCopies()
        self.failure: StepFailure | None = None
        self.submitted: deque[tuple[ExecuteModelRequest, HiddenResult]] = deque()  # that await masks, or follow such
        self.masks: dict[int, StepMasks] = {}
        self.fetching: list[tuple[int, bytes]] = []  # which the next step brings, or one that awaits them
        if self.draft is not None:
            self.draft.start()
        return self.capacity

    def restart(self) -> Capacity:
        self.epoch += 1
        self.num_restarts += isinstance(self.failure, WorkerLost)
        return self.start()

    def load(self, weights: Weights | None) -> Capacity:
        self.weights = weights
        return self.restart()

    def sleep(self, level: int) -> None:
        self.first = self.second = np.zeros((0, BLOCK_SIZE), np.uint64)

    def was_killed(self, failure: WorkerLost) -> bool:
        return self.is_kill

    def shutdown(self) -> None:
        pass

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        future = HiddenResult()
        assert request.epoch == self.epoch
        self.num_steps += 1
        self.submitted.append((request, future))
        self._run()
        return future

    def supply(self, masks: StepMasks) -> None:
        assert masks.epoch == self.epoch
        self.masks[masks.step] = masks
        self._run()

    def _run(self) -> None:
        """Steps in order, up to one whose masks have not come."""
        while self.submitted:
            request, future = self.submitted[0]
            self.failure = self.failure or self._fail(request)
            if self.failure is None and request.awaits_masks and request.step not in self.masks:
                return
            self.submitted.popleft()
            if self.failure is not None:
                future.set_exception(self.failure)
                continue
            with np.errstate(over="ignore"):
                future.set_result(self.execute(request))

    def _fail(self, request: ExecuteModelRequest) -> StepFailure | None:
        tokens = set(request.input_ids.tolist())
        if request.step in self.crash_at or tokens & self.deadly:
            return WorkerLost(0, "crashed on purpose", request.step)
        if request.step in self.raise_at or tokens & self.raising:
            return StepRaised(0, "ValueError: raised on purpose", request.step)
        return None

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput:
        request = self.sets.read(self.tables.read(request))
        fetched = self._move_files(request)
        self._move_blocks(request)
        tokens = request.input_ids.copy()
        if len(request.carried_rows):
            samples = dict(self.samples)
            for step, (row, sampled_row) in zip(
                request.carried_steps.tolist(), request.carried_rows.tolist(), strict=True
            ):
                tokens[row] = samples[step][sampled_row]
        assert (request.slot_mapping >= BLOCK_SIZE).all(), "the null block is written"
        slots = request.slot_mapping.tolist()
        written = set(zip(slots, tokens.tolist(), strict=True)) if self.is_draft else slots  # see `propose`
        assert len(set(slots)) == len(written), "a slot is written twice"
        self.token_ids.reshape(-1)[request.slot_mapping] = tokens
        self.first.reshape(-1)[request.slot_mapping] = first_layer(tokens, request.positions, self._adapters(request))
        self.second.reshape(-1)[request.slot_mapping] = self._attend(self.first, request)
        states = self._attend(self.second, request)
        output = dataclasses.replace(
            self._sample(request, states[request.sampled_rows]),
            pooled_sums=np.array([[states[first:end].sum()] for first, end in request.pooled_ranges], np.uint64)
            .reshape(-1, 1)
            .view(np.int64),
            pooled_are_finite=np.ones(len(request.pooled_ranges), np.bool_),
            fetched=np.array(fetched, np.int32).reshape(-1, 2),
        )
        self.samples.append((request.step, output.token_ids))
        if self.draft is not None:
            self.draft._move_blocks(request)
            output = dataclasses.replace(output, draft_ids=self.draft.propose(request, output.token_ids.tolist()))
        return output

    def _adapters(self, request: ExecuteModelRequest) -> np.ndarray:
        assert len(request.adapter_digests) <= self.max_loras
        added = np.zeros(len(request.input_ids), np.uint64)
        for first, end, number in request.adapter_runs.tolist():
            added[first:end] = added_by(request.adapter_digests[number])
        return added

    def _move_files(self, request: ExecuteModelRequest) -> list[tuple[int, bool]]:
        """What earlier steps fetch arrives as late as it may."""
        for slot, *words in request.blocks_to_store.tolist():
            self.files[np.array(words, np.int32).tobytes()] = self.host[:, slot].copy()
        fetched = []
        for slot, content in self.fetching:
            is_there = content in self.files and not (self.is_lossy and content[0] % 4 == 0)
            self.host[:, slot] = self.files[content] if is_there else 0
            fetched.append((slot, is_there))
        new = [(slot, np.array(words, np.int32).tobytes()) for slot, *words in request.blocks_to_fetch.tolist()]
        self.fetching = new
        return fetched

    def propose(self, request: ExecuteModelRequest, sampled: list[int]) -> np.ndarray:
        """As a draft model: the guesses [D, K] after a step; see `engine.worker.drafting`.
        Sequences that share blocks may both compute what the draft lacks of them: the same cells.
        """
        lines, before = first_lines(request, sampled), None
        guessed = np.zeros((len(lines), max((line.num_wanted for line in lines), default=0)), np.int32)
        for column in range(max(guessed.shape[1], len(lines) > 0)):
            self.num_steps += 1
            tokens = self.execute(make_pass(request, lines, self.num_steps, before)).token_ids
            if self.errors is not None and self.errors.random() < 0.2:
                tokens[:] = (tokens + 1) % self.vocab_size
            if len(tokens):
                guessed[[line.place for line in lines if line.num_wanted], column] = tokens
            before, lines = lines, next_lines(lines)
        return guessed

    def _move_blocks(self, request: ExecuteModelRequest) -> None:
        """One pair after the other, as a worker is free to do: overlapping moves would show."""
        for device, host in request.blocks_to_swap_out:
            self.host[:, host] = self.first[device], self.second[device], self.token_ids[device]
        for host, device in request.blocks_to_swap_in:
            self.first[device], self.second[device], self.token_ids[device] = self.host[:, host]
        for source, target in request.blocks_to_copy:
            for cells in (self.first, self.second, self.token_ids):
                cells[target] = cells[source]

    def _attend(self, cells: np.ndarray, request: ExecuteModelRequest) -> np.ndarray:
        """A row for each token row, all of a step's cells being written."""
        rows = [np.zeros(0, np.uint64)]
        for index, context_len in enumerate(request.context_lens):
            num_rows = request.query_starts[index + 1] - request.query_starts[index]
            context = cells[_blocks(request, index)].reshape(-1)[:context_len]
            rows.append(attend(context)[context_len - num_rows :])
        return np.concatenate(rows)

    def _sample(self, request: ExecuteModelRequest, hidden: np.ndarray) -> SamplerOutput:
        columns = request.sampling
        count = max(int(columns.logprob_counts.max(initial=0)) - 1, 0)
        has_target, target_ids = columns.whole("has_target"), columns.whole("target_ids")
        masks = self.masks.pop(request.step) if request.awaits_masks else None
        is_finite = np.ones(len(hidden), np.bool_)
        tokens, top_ids, top_logprobs = [], [], []
        for row, state in enumerate(hidden.tolist()):
            history = self._history(request, row)
            biased = _ragged(columns.bias_starts, columns.bias_ids, row) + self._banned(request, row)
            key = (
                columns.temperature[row],
                int(columns.seed[row]),
                int(columns.choice[row]),
                int(columns.position[row]),
            )
            banned = set(biased) | self._masked(masks, row)
            is_finite[row] = len(banned) < self.vocab_size
            token = next_token(state, key, history, banned, self.vocab_size) if is_finite[row] else 0
            tokens.append(target_ids[row] if has_target[row] else token)
            ids, logprobs = ranked_tokens(state, count, self.vocab_size)
            top_ids.append(ids)
            top_logprobs.append(logprobs)
        if request.step in self.poison and len(hidden):
            is_finite[0] = False
        return SamplerOutput(
            epoch=request.epoch,
            step=request.step,
            token_ids=np.array(tokens, np.int32),
            is_finite=is_finite,
            logprobs=-(hidden % np.uint64(1000)).astype(np.float32) / 100,
            ranks=np.ones(len(hidden), np.int32),
            top_ids=np.array(top_ids, np.int32).reshape(len(hidden), count),
            top_logprobs=np.array(top_logprobs, np.float32).reshape(len(hidden), count),
            execute_ns=np.array([self._ns_of(request)]),
        )

    def _ns_of(self, request: ExecuteModelRequest) -> int:
        return self.ns_per_step + len(request.input_ids) * self.ns_per_token + self.slow_ns.get(request.step, 0)

    def _history(self, request: ExecuteModelRequest, row: int) -> tuple[int, ...]:
        """The tokens so far of a sampled row with a penalty."""
        if not request.sampling.whole("history_num_prompt")[row]:
            return ()
        sequence = np.flatnonzero(request.query_starts[:-1] <= request.sampled_rows[row])[-1]
        cells = self.token_ids[_blocks(request, sequence)].reshape(-1)
        return tuple(cells[: request.sampling.position[row]].tolist())

    def _banned(self, request: ExecuteModelRequest, row: int) -> tuple[int, ...]:
        """After the row's input token."""
        columns = request.sampling
        last_id = self.token_ids.reshape(-1)[request.slot_mapping[request.sampled_rows[row]]]
        bans = (_ragged(columns.ban_starts, each, row) for each in (columns.ban_last_ids, columns.ban_ids))
        return tuple(banned for after, banned in zip(*bans, strict=True) if after == last_id)

    def _masked(self, masks: StepMasks | None, row: int) -> set[int]:
        words = () if masks is None else _ragged(masks.mask_starts, masks.mask_words, row)
        return {token for token in range(self.vocab_size) if words and not words[token // 32] >> token % 32 & 1}


def _blocks(request: ExecuteModelRequest, index: int) -> np.ndarray:
    return request.block_ids[request.block_starts[index] : request.block_starts[index + 1]]


def _ragged(starts: np.ndarray, values: np.ndarray, row: int) -> tuple[int, ...]:
    return tuple(values[starts[row] : starts[row + 1]].tolist()) if len(starts) else ()
