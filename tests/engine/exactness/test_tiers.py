"""Conversations that come back after many others say the same, and do not compute their prompts
again: from the host's memory, and from files that outlive the engine.
"""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoint.sample import weights_digest
from engine.core.llm_engine import LLMEngine
from engine.executor import Weights
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.engine.support.demo import answers, demo_engine, every_bit, held_out_prompts
from tests.perturbed import save_perturbed

NUM_CONVERSATIONS = 12
SMALL = {"num_gpu_blocks_override": 40, "max_model_len": 400, "ops_backend": "cpu", "dtype": "bfloat16"}
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=1)
SHARDED = {"TP=1": {}, "TP=2 × PP=2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}


def prompts() -> list[list[int]]:
    """Long enough that each has several blocks of its own."""
    return [[number + 10, *prompt][:120] * 2 for number, prompt in enumerate(held_out_prompts(NUM_CONVERSATIONS))]


def converse(engine: LLMEngine) -> list[object]:
    """One after the other; what is stored is written then."""
    said = [every_bit(answers(engine, [(prompt, PARAMS)])[0]) for prompt in prompts()]
    executor = engine.executor
    for worker in [executor._worker] if isinstance(executor, LocalExecutor) else executor._workers:
        worker._runner.moves.flush()
    return said


@pytest.fixture(scope="module")
def alone() -> list[object]:
    with demo_engine(**SMALL, enable_prefix_caching=False) as engine:
        return converse(engine)


def cached_tokens(engine: LLMEngine) -> list[int]:
    return [answers(engine, [(prompt, PARAMS)])[0].num_cached_tokens for prompt in prompts()]


@pytest.mark.parametrize("sharded", SHARDED.values(), ids=SHARDED)
def test_conversations_come_back_from_the_host(alone: list[object], sharded: dict[str, object]) -> None:
    with demo_engine(**SMALL, **sharded, swap_space=0.05) as engine:
        assert converse(engine) == alone
        assert engine.stats().num_external_hits == 0, "nothing came back yet"
        assert converse(engine) == alone
        assert engine.stats().num_external_hits > 0.8 * sum(map(len, prompts()))
    with demo_engine(**SMALL, **sharded, swap_space=0.0) as engine:
        converse(engine)
        assert sum(cached_tokens(engine)) < 0.2 * sum(map(len, prompts())), "the device alone has not room for all"


@pytest.mark.parametrize("sharded", SHARDED.values(), ids=SHARDED)
def test_another_engine_finds_them_in_the_folder(
    alone: list[object], sharded: dict[str, object], tmp_path: Path
) -> None:
    options = {**SMALL, **sharded, "swap_space": 0.05, "kv_offloading_path": f"file://{tmp_path}/blocks"}
    with demo_engine(**options) as engine:
        assert converse(engine) == alone
    with demo_engine(**options) as engine:
        assert converse(engine) == alone
        stats = engine.stats()
        assert stats.num_external_hits > 0.8 * sum(map(len, prompts()))
        assert (stats.num_blocks_missed, stats.num_free_cpu_blocks) == (0, stats.num_cpu_blocks)


def test_blocks_of_other_weights_are_never_read_and_those_of_earlier_ones_are_found_again(
    alone: list[object], tmp_path: Path
) -> None:
    save_perturbed(tmp_path / "new")
    new = Weights("new", "of all numbers", folder=f"{tmp_path}/new", sample=weights_digest(f"{tmp_path}/new"))
    with demo_engine(**SMALL, model=f"{tmp_path}/new", enable_prefix_caching=False) as engine:
        changed = converse(engine)
    assert changed != alone
    num_hits = 0
    with demo_engine(**SMALL, swap_space=0.05, kv_offloading_path=f"{tmp_path}/blocks") as engine:
        for weights, expected, are_there in [
            (None, alone, False),
            (new, changed, False),
            (None, alone, True),
            (new, changed, True),
        ]:
            engine.epochs.change_weights(weights)
            assert converse(engine) == expected
            hits = engine.stats().num_external_hits - num_hits
            assert hits > 0.8 * sum(map(len, prompts())) if are_there else hits == 0
            num_hits += hits


TALKER = """
import sys
from tests.engine.exactness.test_tiers import SMALL, converse
from tests.engine.support.demo import demo_engine
with demo_engine(**SMALL, swap_space=0.05, kv_offloading_path=sys.argv[1]) as engine:
    converse(engine)
    print("said", flush=True)
    sys.stdin.read()
"""


def test_an_engine_that_was_killed_leaves_its_conversations(alone: list[object], tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as talker:
        assert talker.stdout is not None and talker.stdout.readline() == b"said\n"
        talker.kill()
    with demo_engine(**SMALL, swap_space=0.05, kv_offloading_path=str(tmp_path)) as engine:
        assert converse(engine) == alone
        assert engine.stats().num_external_hits > 0.8 * sum(map(len, prompts()))


def damage(path: Path, how: int) -> None:
    data = bytearray(path.read_bytes())
    if how == 0:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == 1:
        path.write_bytes(data[: len(data) // 2])
    elif how == 2:
        path.write_bytes(b"")
    elif how == 3:
        path.unlink()
    else:
        other = next(each for each in path.parents[1].rglob(f"*{path.suffix}") if each != path)
        path.write_bytes(other.read_bytes())


def test_damaged_files_are_computed_again(
    alone: list[object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = SMALL | SHARDED["TP=2 × PP=2"] | {"swap_space": 0.05, "kv_offloading_path": str(tmp_path)}
    with demo_engine(**options) as engine:
        converse(engine)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) > 100
    for number, path in enumerate(files):
        if number % 7 == 0:
            damage(path, number // 7 % 5)
    with caplog.at_level(logging.WARNING, logger="squadron.offload"), demo_engine(**options) as engine:
        assert converse(engine) == alone
        num_missed = engine.stats().num_blocks_missed
        assert num_missed > 0
    assert any("is damaged and was removed" in message for message in caplog.messages)
    with demo_engine(**options) as engine:
        assert converse(engine) == alone
        assert engine.stats().num_blocks_missed < num_missed / 2, "what was missed was stored again"
