"""An engine of this process' own gets other weights, pauses and sleeps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.llm import LLM
from engine.errors import EngineDead, InvalidConfig
from engine.sampling_params import SamplingParams
from tests.corruptions import DEMO, WEIGHTS
from tests.perturbed import save_perturbed

OPTIONS: dict[str, Any] = {"device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 16 << 20}
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=2)
PROMPTS = ["Some text that fills more than a block of the cache. " * 3] * 2 + ["Count from 3 to 9."]


def ask(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("perturbed")
    return folder, save_perturbed(folder)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(model=str(DEMO), **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def own(llm: LLM) -> list[Any]:
    """What the model's own weights answer."""
    return ask(llm)


@pytest.fixture(scope="module")
def expected(perturbed: tuple[Path, dict[str, Tensor]]) -> list[Any]:
    """What an engine answers that was started with the perturbed ones."""
    with LLM(model=str(perturbed[0]), **OPTIONS) as llm:
        return ask(llm)


def test_answers_are_those_of_an_engine_that_was_started_with_them(
    llm: LLM, own: list[Any], expected: list[Any], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    folder, tensors = perturbed
    assert own != expected
    prints = []
    for given in (folder, tensors):
        version = llm.update_weights(given)
        assert ask(llm) == expected
        (output,) = llm.generate("one", PARAMS, use_tqdm=False)
        assert (output.weights_version, output.fingerprint) == (version, output.fingerprint)
        prints.append(output.fingerprint)
        assert llm.update_weights(str(DEMO), "own") == "own"
        assert (ask(llm), llm.weights_version) == (own, "own")
    assert len({*prints, None}) == 3


def test_what_the_caller_does_to_its_tensors_later_changes_nothing(
    llm: LLM, expected: list[Any], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    mine = {name: tensor.clone() for name, tensor in perturbed[1].items()}
    llm.update_weights(mine)
    for tensor in mine.values():
        tensor.zero_()
    llm.sleep(2)  # so that they are read again
    llm.wake_up()
    assert ask(llm) == expected


def test_what_is_refused_changes_nothing(
    llm: LLM, expected: list[Any], perturbed: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    folder, tensors = perturbed
    llm.update_weights(folder, "good")
    norm = tensors["model.norm.weight"]
    for wrong, message in [
        (tensors | {"model.norm.weight": norm[:5]}, r"model.norm.weight has shape \[5\], not \[256\]"),
        (tensors | {"model.norm.weight": norm * torch.nan}, "model.norm.weight holds NaN"),
        ({"model.norm.weight": norm}, r"tensor model.embed_tokens.weight, of shape \[\d+, 256\], is missing"),
        (tmp_path / "nowhere", "is no folder here"),
    ]:
        with pytest.raises(InvalidConfig, match=message):
            llm.update_weights(wrong)
    assert (ask(llm), llm.weights_version) == (expected, "good")


def test_a_folder_that_changes_is_not_read_again(tmp_path: Path) -> None:
    save_perturbed(tmp_path)
    with LLM(model=str(DEMO), **OPTIONS) as llm:
        llm.update_weights(tmp_path, "first")
        tensors = load_file(tmp_path / WEIGHTS)
        save_file({name: tensor * 2 for name, tensor in tensors.items()}, tmp_path / WEIGHTS)
        llm.sleep(2)
        with pytest.raises(EngineDead, match=r"version .first.: .* has changed since they were read from it"):
            llm.wake_up()


def test_sleep_frees_memory_and_changes_no_answer(
    expected: list[Any], perturbed: tuple[Path, dict[str, Tensor]]
) -> None:
    with LLM(model=str(perturbed[0]), **(OPTIONS | {"kv_cache_memory_bytes": 256 << 20})) as llm:
        assert ask(llm) == expected
        llm.generate([[1 + number] * 1500 for number in range(8)], PARAMS, use_tqdm=False)  # the cache's pages are real
        for level in (1, 2):
            before = resident()
            llm.sleep(level)
            assert before - resident() > 4 << 20
            llm.wake_up()
            assert ask(llm) == expected
            llm.generate([[1 + number] * 1500 for number in range(8)], PARAMS, use_tqdm=False)


def resident() -> int:
    """Bytes of this process' memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_number_that_a_caller_has_given_names_no_other_version(perturbed: tuple[Path, dict[str, Tensor]]) -> None:
    folder, tensors = perturbed
    with LLM(model=str(DEMO), **OPTIONS) as llm:
        assert [llm.update_weights(folder, "2"), llm.update_weights(tensors), llm.update_weights(DEMO)] == [
            "2",
            "3",
            "4",
        ]
