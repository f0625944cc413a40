"""Every architecture but Qwen2, which has a file of its own: the logits of transformers, the same bits however it is cut."""

from collections.abc import Callable

import pytest
import torch
import transformers

import ops as backends
from parallel.group import SingleGroup
from tests.parallel.models.saved import VOCAB, Saved, logits_in_steps, make, prompts, save
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.steps import Runner

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


def qwen3() -> transformers.PreTrainedModel:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True))


def qwen2_moe() -> transformers.PreTrainedModel:
    """A layer without experts, and one expert a row goes to whatever the router says."""
    shared = {"shared_expert_intermediate_size": 48, "mlp_only_layers": [1], "hidden_size": 128}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**(SIZES | EXPERTS | shared)))


def qwen3_moe() -> transformers.PreTrainedModel:
    """Experts in every second layer."""
    more = {"head_dim": 32, "norm_topk_prob": True, "decoder_sparse_step": 2}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, **more))


@pytest.fixture(scope="module", params=[qwen3, qwen2_moe, qwen3_moe], ids=lambda make_model: make_model.__name__)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    torch.manual_seed(1)
    make_model: Callable[[], transformers.PreTrainedModel] = request.param
    model = make_model().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.gate.weight"):
            torch.nn.init.normal_(parameter, std=0.15)
    return save(model, tmp_path_factory.mktemp("model"), "1GB")


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
