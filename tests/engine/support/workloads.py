"""Random workloads for the engine on the history executor, and what each request must answer."""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.errors import InvalidRequest
from engine.executor import Capacity
from engine.offload.known import Known
from engine.outputs import Accumulator, RequestOutput
from engine.pooling import NO_TOKENS, Pooling, mean
from engine.recovery.recovery import RestartBudget
from engine.request import Adapter
from engine.sampling_params import SamplingParams
from engine.scheduling.drafts.drafter import Drafter
from engine.text.tokenizer import Tokenizer
from tests.doubles.hash_grammar import HashMatcher
from tests.doubles.history_executor import HistoryExecutor, hidden_states, next_token
from tests.engine.support.arrivals import add_request

DEMO = str(Path(__file__).parents[3] / "configs" / "demo")
MODEL = ModelConfig.load(DEMO)
TOKENIZER = Tokenizer(DEMO)
VOCAB = 37  # small, so that end tokens and stop strings do come up
EOS = 5
REASONING = (2, 3)  # as if these tokens were around reasoning
ADAPTERS = [Adapter(name, "", hashlib.sha256(name.encode()).hexdigest(), 1) for name in ("one", "two", "three")]
REASONER = Tokenizer(DEMO)
REASONER.reasoning_ids = REASONING


@dataclass(slots=True)
class Request:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str | None
    matcher: HashMatcher | None = None  # of its structured output
    pooling: Pooling | None = None
    adapter: Adapter | None = None


@dataclass(slots=True)
class Knobs:
    """A random engine to run a workload on."""

    num_blocks: int = 400
    num_cpu_blocks: int = 0
    swap_seconds_per_block: float = 0.0  # 0: swap whenever the host has room; inf: never
    depth: int = 1
    runs_ahead: bool = False
    moves_a_step: int = 64  # of the host tier
    third_tier: Literal["", "whole", "lossy"] = ""
    overrides: dict[str, object] = field(default_factory=dict)


def make_engine(knobs: Knobs) -> LLMEngine:
    model = MODEL.model_copy(update={"vocab_size": VOCAB, "eos_token_ids": (EOS,), "max_position_embeddings": 512})
    executor = HistoryExecutor(
        Capacity(knobs.num_blocks, knobs.num_cpu_blocks, knobs.swap_seconds_per_block),
        VOCAB,
        knobs.depth,
        knobs.runs_ahead,
    )
    max_model_len = min(model.max_position_embeddings, (knobs.num_blocks - 1) * 16)
    if (knobs.overrides.get("speculative_config") or {}).get("model"):
        executor.draft = HistoryExecutor(executor.capacity, VOCAB, depth=1, runs_ahead=True)
        executor.draft.is_draft = True
    plain = {"model": DEMO, "max_model_len": max_model_len, "max_num_seqs": 32, "max_restarts": 100}
    config = EngineConfig.create(**(plain | {"enable_lora": True} | knobs.overrides))
    executor.max_loras = config.max_loras
    engine = LLMEngine(Parts(config, model, REASONER, executor))
    engine.recovery.budget = RestartBudget(config.max_restarts, backoff_seconds=(0.0,))
    engine.start()
    if knobs.third_tier:
        engine.keeping.known = Known()  # the executor has the files
        engine.scheduler.queues.blocks = engine.cache_size.empty_blocks(executor.capacity)
        executor.is_lossy = knobs.third_tier == "lossy"
    engine.scheduler.blocks.host_tier.moves_a_step = knobs.moves_a_step
    return engine


def random_requests(rng: random.Random, count: int) -> list[Request]:
    shared = [rng.randrange(VOCAB) for _ in range(80)]
    requests = []
    for number in range(count):
        salt = rng.choice((None, None, None, "a", "b"))
        prompt = shared[: rng.choice((0, 0, 16, 40, 64))] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
        if rng.random() < 0.2:
            prompt[:16] = [rng.randrange(VOCAB) for _ in prompt[:16]]  # then the same blocks after another beginning
        if requests and rng.random() < 0.2:
            earlier = rng.choice(requests)
            prompt, salt = earlier.prompt, earlier.cache_salt
            prompt = prompt[: len(prompt) // 16 * 16] or prompt  # whole blocks, so that all of it may be cached
        params, priority = random_params(rng), rng.choice((0, 0, -1, 2))
        if params.thinking_token_budget is not None and rng.random() < 0.5:
            prompt = [*prompt, REASONING[0]]
        request = Request(f"r{number}", prompt, params, priority, salt, random_matcher(params))
        if random.Random(f"{number} of {prompt}").random() < 0.3:
            request.adapter = ADAPTERS[params.max_tokens % 3]
        requests.append(pooled(request) if random.Random(str(prompt)).random() < 0.15 else request)
    return requests


def random_matcher(params: SamplingParams) -> HashMatcher | None:
    """Of every fourth request."""
    if params.seed is None or params.seed % 4:
        return None
    return HashMatcher(params.seed, VOCAB)


def pooled(request: Request) -> Request:
    """The same prompt, for numbers; which ones follows from it."""
    pooling = random.Random(request.prompt[0]).choice((Pooling("last"), Pooling("mean"), Pooling("logprobs", (3, 9))))
    return replace(request, pooling=pooling, params=NO_TOKENS, matcher=None)


def random_params(rng: random.Random) -> SamplingParams:
    options: dict[str, object] = {"max_tokens": rng.randint(1, 70), "seed": rng.getrandbits(63)}
    kind = rng.random()
    if kind < 0.1:
        options = {"max_tokens": rng.randint(1, 12), "beam_width": rng.randint(1, 4)}
        return SamplingParams(
            **options, temperature=0.0, length_penalty=rng.choice((0.0, 1.0)), early_stopping=rng.random() < 0.5
        )
    if kind < 0.3:
        options["n"] = rng.randint(2, 4)
    elif kind < 0.35:
        options |= {"n": 2, "best_of": 4}
    elif kind < 0.37:
        options["best_of"] = 1
    if rng.random() < 0.3:
        options["temperature"] = 0.0
    if rng.random() < 0.2:
        options["frequency_penalty"] = 0.5
    if rng.random() < 0.2:
        options["stop"] = [
            TOKENIZER.decode([rng.randrange(20, VOCAB)]) + TOKENIZER.decode([rng.randrange(20, VOCAB)])[:1] or "x"
        ]
    if rng.random() < 0.2:
        options["stop_token_ids"] = [rng.randrange(VOCAB), rng.randrange(VOCAB)]
    if rng.random() < 0.4:
        options["min_tokens"] = rng.randint(1, options["max_tokens"])
    if rng.random() < 0.6:
        options["ignore_eos"] = True
    if rng.random() < 0.15:
        options["logprobs"] = rng.randint(0, 3)
    if rng.random() < 0.1:
        options["prompt_logprobs"] = rng.randint(0, 2)
    if rng.random() < 0.1:
        options["bad_words"] = [TOKENIZER.decode([rng.randrange(20, VOCAB)])]
    if rng.random() < 0.2:
        options["thinking_token_budget"] = rng.randrange(6)
    return SamplingParams(**options)


def random_knobs(rng: random.Random) -> Knobs:
    max_num_seqs = rng.choice((4, 8, 32))
    depth = rng.choice((1, 2, 3))
    return Knobs(
        num_blocks=rng.choice((15, 20, 30, 45, 200)),
        num_cpu_blocks=rng.choice((0, 20, 200)),
        swap_seconds_per_block=rng.choice((0.0, float("inf"))),
        depth=depth,
        runs_ahead=rng.random() < 0.5,
        moves_a_step=rng.choice((1, 1, 64)),
        third_tier=rng.choice(("", "whole", "lossy")),
        overrides={
            "max_num_seqs": max_num_seqs,
            "max_loras": {4: 1, 8: 2, 32: 3}[max_num_seqs],
            "max_num_batched_tokens": max(rng.choice((8, 33, 64, 2048)), max_num_seqs),
            "long_prefill_token_threshold": rng.choice((0, 0, 1, 7, 16)),
            "enable_prefix_caching": rng.random() < 0.7,
            "scheduling_policy": rng.choice(("fcfs", "priority")),
            "watermark": rng.choice((0.0, 0.01, 0.2)),
            "speculative_config": rng.choice((None, {"num_speculative_tokens": rng.randint(1, 9)})),
        },
    )


def foreknowing(requests: list[Request], answers: dict[str, list[list[int]]], rng: random.Random):
    """A `Drafter.guess` that has seen the answers' tokens, by request and choice; sometimes it is
    silent, or wrong. Random tokens hardly ever repeat what has been.
    """
    known = [request.prompt + token_ids for request in requests for token_ids in answers[request.request_id]]

    def guess(self: Drafter, token_ids: list[int], most: int) -> list[int]:
        if rng.random() < 0.2:
            return []
        whole = next((ids for ids in known if ids[: len(token_ids)] == token_ids), token_ids)
        guessed = whole[len(token_ids) :][: max(most, 0)]
        return [rng.randrange(VOCAB) if rng.random() < 0.2 else token_id for token_id in guessed]

    return guess


def truth(request: Request, choice: int, *, seed: int) -> list[int]:
    """The output tokens of a choice by the model alone: no engine, no cache. For requests without
    text to stop at.
    """
    params = request.params
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    tokens = list(request.prompt)
    while len(tokens) - len(request.prompt) < (params.max_tokens or 0):
        num_output = len(tokens) - len(request.prompt)
        if ends_reasoning(request, tokens):
            tokens.append(REASONING[1])
            if REASONING[1] in ends and num_output >= params.min_tokens:
                break
            continue
        hidden = int(hidden_states(tokens, request.adapter)[-1])
        history = tuple(tokens) if params.has_penalties else ()
        banned = ends if num_output < params.min_tokens else set()
        key = (params.temperature, seed % 2**64, choice, len(tokens))
        tokens.append(next_token(hidden, key, history, banned, VOCAB))
        if tokens[-1] in ends:
            break
    return tokens[len(request.prompt) :]


def ends_reasoning(request: Request, tokens: list[int]) -> bool:
    """Whether the token after these is the one that ends reasoning, by the request's budget."""
    begin, end = REASONING
    marks = [token_id for token_id in request.prompt[-3:] if token_id in REASONING]
    output = [*([begin] if marks[-1:] == [begin] else []), *tokens[len(request.prompt) :]]
    return output[:1] == [begin] and end not in output and len(output) - 1 == request.params.thinking_token_budget


def pooled_truth(request: Request) -> bytes:
    """The numbers, by the model alone."""
    states = hidden_states(request.prompt, request.adapter)
    assert request.pooling is not None
    if request.pooling.type == "last":
        return mean(states[-1:].view(np.int64), 1)
    if request.pooling.type == "mean":
        return mean(states.sum(keepdims=True).view(np.int64), len(states))
    logprob = -np.float32(int(states[-1]) % 1000) / np.float32(100)
    return np.full(len(request.pooling.token_ids), logprob, "<f4").tobytes()


MAX_STEPS = 20_000


def run(engine: LLMEngine, requests: list[Request], rng: random.Random | None = None) -> dict[str, RequestOutput]:
    """Add the requests and step until all have finished; with an rng, add at random moments, and
    abort some.
    """
    num_steps = 0
    abort_at = {rng.randint(1, 80) for _ in range(3)} if rng is not None else set()
    joined: dict[str, Accumulator] = {request.request_id: Accumulator() for request in requests}
    waiting = list(requests)
    results: dict[str, RequestOutput] = {}
    while waiting or engine.has_unfinished_requests():
        while waiting and (rng is None or rng.random() < 0.5):
            request = waiting.pop(0)
            try:
                add_request(
                    engine,
                    request.request_id,
                    request.prompt,
                    request.params,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    matcher=request.matcher,
                    pooling=request.pooling,
                    adapter=request.adapter,
                )
            except InvalidRequest as error:
                results[request.request_id] = refused(request, error)
        if rng is not None and num_steps in abort_at:
            request = rng.choice(requests)
            if request not in waiting and request.request_id not in results:
                engine.abort_request(request.request_id)
                results[request.request_id] = aborted(request)
        num_steps += 1
        assert num_steps < MAX_STEPS, "the workload does not end"
        for output in engine.step():
            total = joined[output.request_id].add(output)
            if total.finished:
                results[output.request_id] = total
        if rng is not None:
            check_engine(engine)
    return results


def finish(engine: LLMEngine) -> dict[str, RequestOutput]:
    """Step until nothing is left; the answers whole."""
    joined: dict[str, Accumulator] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined.setdefault(output.request_id, Accumulator()).add(output)
    return {request_id: total.last for request_id, total in joined.items() if total.last is not None}


def refused(request: Request, error: InvalidRequest) -> RequestOutput:
    return RequestOutput(request.request_id, 0, request.prompt, [], finished=True, error=error.message)


def aborted(request: Request) -> RequestOutput:
    return RequestOutput(request.request_id, 0, request.prompt, [], finished=True, error="aborted")


def was_refused(answer: object) -> bool:
    """Refused for its size, or aborted: then there is nothing to compare."""
    return any(word in str(answer) for word in ("cache blocks", "max_num_seqs", "aborted"))


def check_engine(engine: LLMEngine) -> None:
    """References are users, free and used are all there is, and every queue is in its order."""
    queues, blocks = engine.scheduler.queues, engine.scheduler.blocks
    for queue in (queues.waiting, queues.running, queues.swapped):
        assert [lane.order for lane in queue] == sorted(lane.order for lane in queue)
    assert queues.num_places == sum(lane.num_places for lane in queues.running)
    assert queues.running_groups == Counter(lane.group for lane in queues.running)
    assert queues.swapped_groups == Counter(lane.group for lane in queues.swapped)
    assert queues.num_places_swapped == sum(lane.num_places for lane in queues.swapped)
    groups = {lane.group for lane in (*queues.waiting, *queues.running, *queues.swapped)}
    aside = {lane for group in groups | {*engine.scheduler.third_tier.fetching} for lane in group.aside}
    assert queues.num_places_wanted == sum(lane.num_places for lane in (*queues.waiting, *aside))
    stats = engine.stats()
    assert 0 <= stats.num_seqs_returning <= stats.num_seqs_waiting
    assert 0 <= stats.num_returning_tokens <= stats.num_waiting_tokens
    device: dict[int, int] = {}
    host: dict[int, int] = {}
    for lane in (*queues.waiting, *queues.running, *queues.swapped):
        for seq in lane.seqs:
            for block in seq.block_table:
                device[block] = device.get(block, 0) + 1
            for block in seq.host_block_table:
                host[block] = host.get(block, 0) + 1
    for block in [] if blocks.shelf is None else blocks.shelf.held():
        host[block] = host.get(block, 0) + 1
    blocks.device.check(device)
    blocks.host.check(host)


def essence(output: RequestOutput) -> object:
    """What must not depend on anything but the request."""
    choices = [
        (o.index, o.token_ids, o.text, o.finish_reason, o.stop_reason, o.logprobs, o.cumulative_logprob, o.pooled)
        for o in output.outputs
    ]
    return choices, output.prompt_logprobs, output.error
