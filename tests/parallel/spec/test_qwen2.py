import copy
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import ops as backends
from parallel.groups.group import SingleGroup
from parallel.groups.pipeline import Stage
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import Saved, logits_in_steps, make, prompts, save_qwen2
from tests.parallel.steps import Runner

SINGLE = Stage(0, 1, None)


@pytest.fixture(scope="module", params=["tied", "untied, in several files"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save_qwen2(tmp_path_factory.mktemp("model"), is_tied=request.param == "tied")


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize("pp_size", [1, 2])
def test_logits_are_those_of_transformers_however_it_is_cut(saved: Saved, tp_size: int, pp_size: int) -> None:
    ranks = run_ranks(tp_size, lambda tp, pp: logits_in_steps(make(saved, tp, pp)), pp_size=pp_size)
    assert all(each is None for each in ranks[: tp_size * (pp_size - 1)])
    for rank in ranks[tp_size * (pp_size - 1) :]:
        for prompt, got in zip(prompts(), rank, strict=True):
            want = saved.model(torch.tensor([prompt])).logits[0]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert torch.equal(got.argmax(1), want.argmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stages_give_the_same_bits_as_one(saved: Saved, dtype: torch.dtype) -> None:
    whole = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype)))[0]
    for pp_size in (2, 4):
        ranks = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype)), pp_size=pp_size)
        assert all(torch.equal(got, want) for got, want in zip(ranks[-1], whole, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_exact_backend_gives_the_same_bits_however_it_is_cut(saved: Saved, dtype: torch.dtype) -> None:
    if (reason := backends.unavailable_reason("cpu", CPU)) is not None:
        pytest.skip(reason)
    exact = backends.select("cpu", CPU)
    assert exact.EXACT
    whole = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype, exact)))[0]
    for tp_size, pp_size in ((2, 1), (4, 1), (2, 2)):
        ranks = run_ranks(tp_size, lambda tp, pp: logits_in_steps(make(saved, tp, pp, dtype, exact)), pp_size=pp_size)
        assert all(torch.equal(got, want) for got, want in zip(ranks[-1], whole, strict=True))
    runner = Runner(make(saved, SingleGroup(), SingleGroup(), dtype, exact), len(prompts()))
    for index, (prompt, want) in enumerate(zip(prompts(), whole, strict=True)):
        assert torch.equal(runner.step({index: (0, prompt)}), want), "chunks, or the rows beside, have changed bits"


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(saved: Saved) -> None:
    theirs = copy.deepcopy(saved.model).bfloat16()
    got = logits_in_steps(make(saved, SingleGroup(), SingleGroup(), torch.bfloat16))
    for prompt, logits in zip(prompts(), got, strict=True):
        want = saved.model(torch.tensor([prompt])).logits[0]
        error, usual = (logits - want).norm(), (theirs(torch.tensor([prompt])).logits[0].float() - want).norm()
        assert error < 1.2 * usual < 0.5 * want.norm()


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_extended_contexts_are_those_of_transformers(saved: Saved, kind: str) -> None:
    rope = {
        "linear": {"factor": 2.0},
        "llama3": {
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    }[kind]
    # As in Qwen's model cards, YaRN's context is beyond max_position_embeddings.
    positions = {"max_position_embeddings": 32} if kind == "yarn" else {}
    hf_config = saved.hf_config | positions | {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **rope}}
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_dict(hf_config)).eval()
    theirs.load_state_dict(saved.model.state_dict())
    model = make(Saved(saved.folder, hf_config, theirs), SingleGroup(), SingleGroup())
    assert max(map(len, prompts())) > 32
    for prompt, got in zip(prompts(), logits_in_steps(model), strict=True):
        torch.testing.assert_close(got, theirs(torch.tensor([prompt])).logits[0], rtol=1e-4, atol=1e-4)


def test_the_older_tensors_of_a_tied_checkpoint_are_passed_over(saved: Saved, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in saved.model.state_dict().items()}
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(16)
    save_file(state, tmp_path / "model.safetensors")
    model = make(Saved(str(tmp_path), saved.hf_config, saved.model), SingleGroup(), SingleGroup())
    want = logits_in_steps(make(saved, SingleGroup(), SingleGroup()))
    assert all(torch.equal(a, b) for a, b in zip(logits_in_steps(model), want, strict=True))
