"""What a look at an engine takes with it, on engines of which every number is known otherwise."""

import random
from dataclasses import replace

import numpy as np
import pytest

from engine.core.llm_engine import LLMEngine
from engine.records import snapshot as module
from engine.records.snapshot import NUM_OLD_STEPS, NUM_STEPS, Snapshot, snapshot
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import VOCAB, Knobs, make_engine

ENDLESS = SamplingParams(max_tokens=400, seed=1, ignore_eos=True)


def look(engine: LLMEngine) -> Snapshot:
    return snapshot(engine.recorder, engine.scheduler)


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def test_an_idle_engine_shows_nothing() -> None:
    seen = look(make_engine(Knobs()))
    assert (seen.steps, seen.running, seen.swapped, seen.waiting, seen.ended) == ([], [], [], [], [])
    assert seen.tables.shape == (0, 0) and seen.kept_blocks == [] and seen.num_blocks == 400


def test_sequences_are_told_with_their_blocks_and_what_the_cache_had_of_them() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "first", prompt(40), ENDLESS)
    for _ in range(3):
        engine.step()
    add_request(engine, "second", prompt(40), ENDLESS)
    engine.step()
    seen = look(engine)
    first, second = seen.running
    assert (first.request_id, first.phase, first.num_prompt_tokens, first.num_cached_tokens) == (
        "first",
        "decode",
        40,
        0,
    )
    assert (second.num_cached_tokens, second.num_output_tokens, second.num_blocks) == (32, 1, 3)
    assert seen.tables.shape == (2, 3) and seen.tables[0, :2].tolist() == seen.tables[1, :2].tolist()
    assert set(seen.kept_blocks) == set(seen.tables[0, :2].tolist())
    engine.abort_request("first")
    seen = look(engine)
    assert [each.request_id for each in seen.running] == ["second"]
    assert [request_id for request_id, _ in seen.ended] == ["first"]


def test_waiting_and_swapped_sequences_are_told() -> None:
    engine = make_engine(Knobs(num_blocks=12, num_cpu_blocks=40, overrides={"max_num_seqs": 3}))
    for number in range(5):
        add_request(engine, f"r{number}", prompt(40, number), replace(ENDLESS, max_tokens=130))
    while not engine.stats().num_requests_swapped:
        engine.step()
    seen = look(engine)
    stats = engine.stats()
    counts = (stats.num_requests_running, stats.num_requests_swapped, stats.num_requests_waiting)
    assert (len(seen.running), len(seen.swapped), len(seen.waiting)) == counts
    assert all(each.num_blocks > 0 for each in seen.swapped) and all(each.num_blocks == 0 for each in seen.waiting)
    assert {each.phase for each in seen.swapped} == {"swap"}


def test_it_is_bounded_however_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_SECONDS", -1.0)  # all steps are old
    engine = make_engine(Knobs(num_blocks=4000, overrides={"max_num_seqs": 100, "max_num_queued_reqs": 0}))
    for number in range(150):
        add_request(engine, f"r{number}", prompt(20, number), ENDLESS)
    for _ in range(100):
        engine.step()
    seen = look(engine)
    assert (len(seen.steps), len(seen.running), len(seen.waiting)) == (NUM_OLD_STEPS, 64, 16)
    assert [record.step for record in seen.steps] == list(range(100 - NUM_OLD_STEPS, 100))
    assert len(seen.tables) == 100 and np.count_nonzero(seen.tables[:, 0]) == 100
    monkeypatch.setattr(module, "STEP_SECONDS", 1e9)
    for _ in range(NUM_STEPS):
        engine.step()
    assert len(look(engine).steps) == NUM_STEPS


def test_a_recovery_has_its_time() -> None:
    engine = make_engine(Knobs())
    engine.executor.crash_at = {3}
    add_request(engine, "r", prompt(5), ENDLESS)
    for _ in range(8):
        engine.step()
    (recovered,) = look(engine).recovered
    last, first = (max(r.finished for r in look(engine).steps if r.epoch == 0), look(engine).steps[-1].finished)
    assert last <= recovered.start <= recovered.end <= first
