"""A scripted engine: what its steps take follows from their rows and the prompts' tokens in them,
and what it need not compute from a cache of prompts' beginnings, of which the oldest give way.
"""

import heapq
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from engine.kv_events.beginnings import MAX_LOST, PIECE_BYTES
from engine.request import BYTES_PER_TOKEN

PIECE_TOKENS = PIECE_BYTES // BYTES_PER_TOKEN
STEP_SECONDS = 0.008  # without rows; these figures are about those of a 7B model on one H200
ROW_SECONDS = 0.00003  # of a sequence that gets one token
PROMPT_SECONDS = 0.00006  # of a token of a prompt
MAX_PROMPT_TOKENS = 2048  # in a step
MAX_PIECES = 4096  # in the cache unless told otherwise: 262,144 tokens


@dataclass(slots=True)
class Asked:
    """A request on its way. Times in seconds; `beginnings` are the prompt's, `later` those that
    its prompt and answer will have as the next prompt.
    """

    arrived: float
    num_tokens: int  # of the prompt
    num_answer: int  # tokens
    beginnings: list[bytes]
    later: list[bytes]
    conversation: int
    engine: int = -1
    gateway: int = -1
    number: int = -1  # of its call
    num_cached: int = 0  # tokens
    num_left: int = 0  # of the prompt, to be computed
    first_token: float = 0.0


@dataclass(slots=True)
class ScriptedEngine:
    max_pieces: int = MAX_PIECES
    waiting: deque[Asked] = field(default_factory=deque)
    running: list[tuple[int, int, Asked]] = field(default_factory=list)  # by the step that ends it
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    lost: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_LOST))  # that the cache no longer has
    num_steps: int = 0
    is_busy: bool = False
    _begun: list[Asked] = field(default_factory=list)  # whose prompt ends with the current step
    _in_use: Counter[bytes] = field(default_factory=Counter)  # as `Beginnings` has it: will be computed
    _order: int = 0

    def add(self, asked: Asked) -> None:
        num_known = 0
        for beginning in asked.beginnings:
            if beginning not in self.cache:
                break
            num_known += 1
        asked.num_cached = min(num_known * PIECE_TOKENS, asked.num_tokens - 1)
        asked.num_left = asked.num_tokens - asked.num_cached
        self._in_use.update(asked.beginnings)
        self._touch(asked.beginnings)
        self.waiting.append(asked)

    def begin_step(self) -> float:
        """The seconds that it takes; 0 if there is nothing to do."""
        if not (self.waiting or self.running):
            return 0.0
        budget = MAX_PROMPT_TOKENS
        while self.waiting and budget:
            taken = min(budget, self.waiting[0].num_left)
            self.waiting[0].num_left -= taken
            budget -= taken
            if not self.waiting[0].num_left:
                self._begun.append(self.waiting.popleft())
        return STEP_SECONDS + len(self.running) * ROW_SECONDS + (MAX_PROMPT_TOKENS - budget) * PROMPT_SECONDS

    def end_step(self, now: float) -> tuple[int, list[Asked]]:
        """How many tokens it has made, and the requests that have ended."""
        self.num_steps += 1
        num_tokens = len(self.running) + len(self._begun)
        for asked in self._begun:
            asked.first_token = now
            self._order += 1
            heapq.heappush(self.running, (self.num_steps + asked.num_answer - 1, self._order, asked))
        self._begun = []
        ended = []
        while self.running and self.running[0][0] <= self.num_steps:
            asked = heapq.heappop(self.running)[2]
            self._in_use.subtract(asked.beginnings)
            self._touch(asked.later)
            ended.append(asked)
        return num_tokens, ended

    def _touch(self, beginnings: list[bytes]) -> None:
        for beginning in reversed(beginnings):
            self.cache[beginning] = None
            self.cache.move_to_end(beginning)
        while len(self.cache) > self.max_pieces:
            beginning, _ = self.cache.popitem(last=False)
            if not self._in_use[beginning]:
                self.lost.append(beginning)

    def take_lost(self, most: int) -> bytes:
        return b"".join(self.lost.popleft() for _ in range(min(most, len(self.lost))))
