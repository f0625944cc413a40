"""A rank's shard of a model: what it holds, and what it computes of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ops import reference
from parallel.decoder import Decoder
from parallel.errors import InvalidCheckpoint
from parallel.groups.group import Group, SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import VOCAB, Saved, logits_in_steps, make, save_qwen2

SINGLE = Stage(0, 1, None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save_qwen2(tmp_path_factory.mktemp("model"), is_tied=True)


def test_dummy_weights_are_one_model_however_it_is_cut(saved: Saved) -> None:
    def compute(tp: Group, pp: Group) -> list[Tensor] | None:
        stage = Stage(pp.rank, pp.size, pp if pp.size > 1 else None)
        model = Decoder(read(saved.hf_config), ops=reference, tp=tp, stage=stage, dtype=torch.float32, device=CPU)
        model.load_dummy_weights(5)
        return logits_in_steps(model)

    whole = run_ranks(1, compute)[0]
    cut = run_ranks(2, compute, pp_size=2)[-1]
    for got, want in zip(cut, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not torch.equal(whole[0], logits_in_steps(make(saved, SingleGroup(), SingleGroup()))[0])


def test_a_rank_knows_what_it_holds_before_it_loads(saved: Saved) -> None:
    model = Decoder(
        read(saved.hf_config), ops=reference, tp=SingleGroup(), stage=SINGLE, dtype=torch.float32, device=CPU
    )
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (4, 2, 32)

    def held(tp: Group, pp: Group) -> tuple[int, int]:
        model = Decoder(
            read(saved.hf_config), ops=reference, tp=tp, stage=Stage(pp.rank, 3, pp), dtype=torch.float32, device=CPU
        )
        return model.num_layers, model.num_kv_heads

    assert run_ranks(4, held, pp_size=3) == [(2, 1)] * 4 + [(1, 1)] * 8


def test_a_rank_holds_its_own_slices_only(saved: Saved) -> None:
    def held(tp: Group, pp: Group) -> tuple[int, ...]:
        layers = make(saved, tp, pp).layers
        down = sum(leaf.numel() for leaf in layers[0].mlp.down.weight.leaves)
        return len(layers), layers[0].qkv.weight.numel(), down

    assert run_ranks(4, held, pp_size=2) == [(2, (32 + 32 + 32) * 128, 128 * 96 // 4)] * 8


@pytest.mark.parametrize("num_rows", [VOCAB, VOCAB - 1])
def test_a_tied_head_that_is_another_is_refused(saved: Saved, tmp_path: Path, num_rows: int) -> None:
    """Transformers 5 does not tie it then, and older ones do."""
    state = {name: tensor.clone() for name, tensor in saved.model.state_dict().items()}
    state["lm_head.weight"] = state["lm_head.weight"][:num_rows].clone()
    state["lm_head.weight"][num_rows - 1] += 1
    save_file(state, tmp_path / "model.safetensors")

    def load(tp: Group, pp: Group) -> str:
        try:
            make(Saved(str(tmp_path), saved.hf_config, saved.model), tp, pp)
        except InvalidCheckpoint as error:
            return str(error)
        return ""

    said = run_ranks(2, load, pp_size=2)
    assert said[1].startswith(f"{tmp_path}/model.safetensors: lm_head.weight differs from model.embed_tokens.weight")
    assert said[2:] == ["", ""]
