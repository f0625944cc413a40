"""Every architecture but Qwen2, which has a file of its own: the logits of transformers, the same
bits however it is cut.
"""

import copy

import pytest
import torch

import ops as backends
from ops.interface import Quantization
from parallel.groups.group import SingleGroup
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import MAKERS, Saved, logits_in_steps, make, make_and_save, prompts
from tests.parallel.steps import Runner


@pytest.fixture(scope="module", params=MAKERS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return make_and_save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture
def expected(saved: Saved) -> list[torch.Tensor]:
    return [saved.model(torch.tensor([prompt])).logits[0] for prompt in prompts()]


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_logits_are_those_of_transformers_however_it_is_cut(
    saved: Saved, expected: list[torch.Tensor], tp_size: int, pp_size: int
) -> None:
    ranks = run_ranks(tp_size, lambda tp, pp: logits_in_steps(make(saved, tp, pp)), pp_size=pp_size)
    for rank in ranks[tp_size * (pp_size - 1) :]:
        for got, want in zip(rank, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
            assert torch.equal(got.argmax(1), want.argmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_exact_backend_gives_the_same_bits_however_it_is_cut(
    saved: Saved, expected: list[torch.Tensor], dtype: torch.dtype
) -> None:
    if (reason := backends.unavailable_reason("cpu", CPU)) is not None:
        pytest.skip(reason)
    exact = backends.select("cpu", CPU)
    whole = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype, exact)))[0]
    if dtype == torch.float32:
        for got, want in zip(whole, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
    for tp_size, pp_size in ((1, 2), (2, 1), (2, 2), (4, 1), (4, 2)):
        ranks = run_ranks(tp_size, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype, exact)), pp_size=pp_size)
        for rank in ranks[tp_size * (pp_size - 1) :]:
            assert all(torch.equal(got, want) for got, want in zip(rank, whole, strict=True))
    runner = Runner(make(saved, SingleGroup(), SingleGroup(), dtype, exact), len(prompts()))
    for index, (prompt, want) in enumerate(zip(prompts(), whole, strict=True)):
        assert torch.equal(runner.step({index: (0, prompt)}), want), "chunks, or the rows beside, have changed bits"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_as_it_is_loaded_it_has_the_same_bits_however_it_is_cut(
    saved: Saved, quantization: Quantization
) -> None:
    if (reason := backends.unavailable_reason("cpu", CPU)) is not None:
        pytest.skip(reason)
    quantized = backends.quantizing(backends.select("cpu", CPU), quantization)
    whole, halves, quarters = (
        run_ranks(size, lambda tp, pp: logits_in_steps(make(saved, tp, pp, torch.bfloat16, quantized)))
        for size in (1, 2, 4)
    )
    for rank in (*halves, *quarters):
        assert all(torch.equal(got, want) for got, want in zip(rank, whole[0], strict=True))


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(saved: Saved, expected: list[torch.Tensor]) -> None:
    theirs = copy.deepcopy(saved.model).bfloat16()
    got = logits_in_steps(make(saved, SingleGroup(), SingleGroup(), torch.bfloat16))
    assert got is not None
    usual = [theirs(torch.tensor([prompt])).logits[0].float() for prompt in prompts()]
    # The median row's: rounding sends some rows to other experts, ours and theirs not the same
    # ones.
    error, theirs_error = (
        torch.cat([(a - b).norm(dim=1) for a, b in zip(logits, expected, strict=True)]).median()
        for logits in (got, usual)
    )
    assert error < 1.05 * theirs_error < 0.1 * torch.cat(expected).norm(dim=1).median()
