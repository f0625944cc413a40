"""Ranks on Ray get other weights: all of them, whatever becomes of one."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from torch import Tensor

from cluster.llm import LLM
from cluster.weights.objects import ObjectTensors
from cluster.workers.group import seating
from engine.errors import EngineDead, InvalidConfig
from engine.executor import Weights
from engine.sampling_params import SamplingParams
from tests.corruptions import DEMO
from tests.perturbed import save_perturbed

pytestmark = pytest.mark.usefixtures("cluster")
OPTIONS: dict[str, Any] = {"device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 16 << 20}
SECONDS = 120.0
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("perturbed")
    return folder, save_perturbed(folder)


@pytest.fixture(scope="module")
def expected(tensors: tuple[Path, dict[str, Tensor]]) -> tuple[Any, Any]:
    """The answers of one rank with the model's own weights, and with the others."""
    answers = []
    for model in (DEMO, tensors[0]):
        with LLM(model=str(model), **OPTIONS) as llm:
            answers.append(ask(llm))
    assert answers[0] != answers[1]
    return answers[0], answers[1]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(model=str(DEMO), tensor_parallel_size=2, **OPTIONS) as llm:
        yield llm


def ask(llm: LLM) -> Any:
    (output,) = llm.generate("Some text. " * 8, PARAMS, use_tqdm=False)
    return output.outputs[0].token_ids, output.outputs[0].logprobs


def pids(llm: LLM) -> list[int]:
    executor: Any = llm._engine.engine._executor
    return list(executor.worker_pids)


def test_a_worker_that_takes_a_lost_ones_place_has_the_same(
    llm: LLM, expected: tuple[Any, Any], tensors: tuple[Path, dict[str, Tensor]]
) -> None:
    for given in tensors:
        before = pids(llm)
        llm.update_weights(given)
        assert pids(llm) == before
        assert ask(llm) == expected[1]
        os.kill(before[1], signal.SIGKILL)
        assert ask(llm) == expected[1]
        assert pids(llm)[0] == before[0] and pids(llm)[1] != before[1]
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        assert ask(llm) == expected[1]
    llm.update_weights(DEMO)
    assert ask(llm) == expected[0]


@pytest.mark.long
def test_a_rank_that_dies_meanwhile(
    llm: LLM,
    expected: tuple[Any, Any],
    tensors: tuple[Path, dict[str, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agree, victims = seating.agree, [pids(llm)[1]]

    def agree_and_lose_one(*arguments: Any) -> str:
        level = agree(*arguments)
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)
        return level

    monkeypatch.setattr(seating, "agree", agree_and_lose_one)
    llm.update_weights(tensors[0])
    assert victims == []
    assert ask(llm) == expected[1]


@ray.remote(num_cpus=0)
class Trainer:
    def put(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {name: ray.put(tensor) for name, tensor in tensors.items()}


def end(trainer: Any, tensors: ObjectTensors) -> None:
    """Until Ray knows, objects that are on this node may still be read."""
    ray.kill(trainer)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            for name in tensors:
                tensors[name]
        except InvalidConfig:
            return
    raise AssertionError("Ray still has the objects of a process that has ended")


def test_weights_whose_owner_has_ended(
    llm: LLM, expected: tuple[Any, Any], tensors: tuple[Path, dict[str, Tensor]]
) -> None:
    trainers = [Trainer.remote() for _ in range(2)]  # type: ignore[attr-defined]
    gone, there = (ObjectTensors(ray.get(trainer.put.remote(tensors[1]))) for trainer in trainers)
    controls = llm._engine.engine.controls

    end(trainers[0], gone)
    with pytest.raises(InvalidConfig, match=r"tensor model.*cannot be fetched from Ray's object store"):
        controls.update_weights(Weights("gone", "one", tensors=gone)).result()
    assert ask(llm) == expected[0]

    controls.update_weights(Weights("there", "two", tensors=there)).result()
    assert ask(llm) == expected[1]
    end(trainers[1], there)
    assert ask(llm) == expected[1]
    os.kill(pids(llm)[1], signal.SIGKILL)
    with pytest.raises(EngineDead, match=r"weights of version 'there': tensor .* cannot be fetched"):
        while True:
            ask(llm)
