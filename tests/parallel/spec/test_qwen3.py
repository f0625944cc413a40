from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec.qwen3 import read
from tests.parallel.spec.configs import qwen3


def test_heads_have_a_size_of_their_own_and_norms() -> None:
    config = read(qwen3())
    assert (config.layer.head_dim, config.layer.has_qkv_bias, config.layer.has_qk_norm) == (128, False, True)
    assert config.shapes()["model.layers.0.self_attn.o_proj.weight"] == (896, 2048)
    assert config.shapes()["model.layers.23.self_attn.k_norm.weight"] == (128,)
    assert not any(name.endswith(".bias") for name in config.shapes())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias=True is not supported; False is"),
        ({"head_dim": None}, "head_dim=None must be given as positive integers"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported; False is"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(qwen3(**changes))
