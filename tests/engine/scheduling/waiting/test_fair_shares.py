"""Keys are given tokens by their weights, whoever asks for more; without keys, the order is that of
arrival and priority.
"""

import random
from collections import Counter

import pytest

from engine.core.llm_engine import LLMEngine
from engine.request import Share
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import VOCAB, Knobs, check_engine, essence, finish, make_engine

SEATS = 16
NUM_TOKENS = 40  # of each answer
GREEDY = "greedy"
OTHERS = [f"key-{number}" for number in range(9)]
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
ONE_TOKEN = SamplingParams(max_tokens=1)


class Clients:
    """Requests of keys to one engine, each its own prompt, and the tokens that came of them."""

    def __init__(self, **knobs: object) -> None:
        overrides = {"max_num_seqs": SEATS, "enable_prefix_caching": False}
        self.engine = make_engine(Knobs(**({"depth": 2, "runs_ahead": True, "overrides": overrides} | knobs)))
        self.tokens: Counter[str | None] = Counter()
        self._rng = random.Random(0)
        self._keys: dict[str, str | None] = {}

    def send(self, key: str | None, count: int = 1, *, weight: float = 1.0, **options: object) -> None:
        for _ in range(count):
            request_id = f"r{len(self._keys)}"
            self._keys[request_id] = key
            prompt = [self._rng.randrange(VOCAB) for _ in range(20)]
            add_request(self.engine, request_id, prompt, PARAMS, share=Share(key, weight), **options)

    def step(self) -> None:
        for output in self.engine.step():
            key = self._keys[output.request_id]
            self.tokens[key] += sum(len(choice.token_ids) for choice in output.outputs)


def tokens_at_rates(rates: dict[str, int], num_steps: int, **knobs: object) -> Counter[str | None]:
    """Tokens by key. A rate of one is the tenth part of what the engine gives: SEATS answers in
    NUM_TOKENS steps.
    """
    clients = Clients(**knobs)
    every = 10 * NUM_TOKENS // SEATS
    for step in range(num_steps):
        for number, (key, rate) in enumerate(rates.items()):
            if rate > every or (step + number) % every == 0:
                clients.send(key, max(rate // every, 1) if rate > every else rate)
        clients.step()
    check_engine(clients.engine)
    return clients.tokens


@pytest.mark.parametrize(
    ("num_cpu_blocks", "num_blocks"),
    [
        (0, 400),
        (60, 40),
        *(pytest.param(*blocks, marks=pytest.mark.long) for blocks in ((0, 40), (60, 400))),
    ],
)
def test_a_key_at_twenty_times_its_share_takes_a_tenth_at_most_from_nine_others(
    num_blocks: int, num_cpu_blocks: int
) -> None:
    """With blocks for all seats, and for about half of them."""
    knobs = {"num_blocks": num_blocks, "num_cpu_blocks": num_cpu_blocks}
    num_steps = 1500
    before = tokens_at_rates(dict.fromkeys([*OTHERS, GREEDY], 1), num_steps, **knobs)
    beside = tokens_at_rates(dict.fromkeys(OTHERS, 1) | {GREEDY: 20}, num_steps, **knobs)
    lost = {key: 1 - beside[key] / before[key] for key in OTHERS}
    assert max(lost.values()) <= 0.1, lost
    assert sum(beside.values()) >= 0.95 * sum(before.values()), "no seat stays empty"


def test_requests_without_a_key_count_as_one_key() -> None:
    clients = Clients()
    clients.send(None, 800)
    for _ in range(500):
        clients.send("late")
        clients.step()
    assert clients.tokens["late"] / sum(clients.tokens.values()) > 0.4


def test_weights() -> None:
    clients = Clients()
    weights = {"one": 1.0, "two": 2.0, "five": 5.0}
    for key, weight in weights.items():
        clients.send(key, 400, weight=weight)
    for _ in range(1500):
        clients.step()
    total = sum(clients.tokens.values())
    for key, weight in weights.items():
        assert clients.tokens[key] / total == pytest.approx(weight / 8, rel=0.05)


def test_who_asked_for_nothing_has_no_credit() -> None:
    clients = Clients()
    clients.send("steady", 400)
    for _ in range(400):
        clients.step()
    clients.send("new", 400)
    before = clients.tokens.copy()
    for _ in range(1000):
        clients.step()
    gained = clients.tokens - before
    assert gained["new"] / gained["steady"] == pytest.approx(1, rel=0.1)


def admitted(engine: LLMEngine) -> list[str]:
    """Ids in the order in which requests have left the queue, one at a time."""
    queue, ids = engine.scheduler.queues.waiting, []
    while (lane := queue.first()) is not None:
        ids.append(lane.group.request.id)
        queue.remove(lane)
    return ids


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("key", [None, "only"])
def test_with_one_key_the_order_is_that_of_arrival_and_priority(policy: str, key: str | None) -> None:
    rng = random.Random(1)
    engine = make_engine(Knobs(overrides={"scheduling_policy": policy}))
    for number in range(100):
        priority = rng.choice((0, 1, 5))
        add_request(engine, f"r{number}", [1, 2], ONE_TOKEN, share=Share(key), priority=priority)
    queue = engine.scheduler.queues.waiting
    in_order = [lane.group.request.id for lane in queue]
    assert [lane.group.request.id for lane in queue.admissible()] == in_order == admitted(engine)


def test_priority_comes_before_a_keys_turn_and_starves_nobody() -> None:
    engine = make_engine(Knobs(overrides={"scheduling_policy": "priority"}))
    add_request(engine, "patient", [1, 2], ONE_TOKEN, share=Share("b"), priority=1)
    for number in range(1100):
        add_request(engine, f"urgent{number}", [1, 2], ONE_TOKEN, share=Share("a"))
    assert admitted(engine).index("patient") == 999, "one level is worth a thousand arrivals"


def test_a_preempted_lane_returns_before_newcomers_of_other_keys() -> None:
    engine = make_engine(Knobs(num_blocks=40, overrides={"max_num_seqs": 2}))
    add_request(engine, "a", [1] * 20, PARAMS, share=Share("a"))
    engine.step()
    add_request(engine, "b", [2] * 20, PARAMS, share=Share("b"))
    queues = engine.scheduler.queues
    (lane,) = queues.running
    queues.requeue(lane)
    assert [lane.group.request.id for lane in queues.waiting.admissible()] == ["a", "b"]


def test_answers_do_not_depend_on_keys() -> None:
    def answers(keys: list[str | None]) -> dict[str, object]:
        clients = Clients(num_blocks=40)
        for number in range(30):
            clients.send(keys[number % len(keys)])
        return {request_id: essence(output) for request_id, output in finish(clients.engine).items()}

    assert answers(["a", "b", "c"]) == answers([None])
