from typing import Any

import pytest
import torch
from transformers import Qwen2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from parallel.errors import UnsupportedModel
from parallel.rotary import cos_sin_table, inverse_frequencies
from parallel.spec.rope import read_rope

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
KINDS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
    },
]


def hf_config(**rope: Any) -> dict[str, Any]:
    return {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 4096, **rope}


@pytest.mark.parametrize("parameters", KINDS, ids=lambda each: "-".join(map(str, each.values())))
@pytest.mark.parametrize("theta", [10000.0, 1e6])
def test_the_tables_are_those_of_transformers(parameters: dict[str, Any], theta: float) -> None:
    theirs = Qwen2Config(**hf_config(rope_parameters={**parameters, "rope_theta": theta}))
    embedding = Qwen2RotaryEmbedding(theirs)
    positions = torch.arange(4096)[None]
    cos, sin = embedding(torch.zeros(1, dtype=torch.float32), positions)

    rope = read_rope(hf_config(rope_parameters={**parameters, "rope_theta": theta}))
    table = cos_sin_table(rope, 64, 4096)
    frequencies, factor = inverse_frequencies(rope, 64)
    torch.testing.assert_close(frequencies, embedding.inv_freq, rtol=2e-7, atol=0)
    assert factor == pytest.approx(embedding.attention_scaling)
    assert table.dtype == torch.float32
    assert table.is_contiguous()
    torch.testing.assert_close(table, torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=1), rtol=0, atol=1e-3)
    assert parameters["rope_type"] in {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("parameters", KINDS[1:4], ids=lambda each: each["rope_type"])
def test_the_older_form_means_the_same(parameters: dict[str, Any]) -> None:
    new = read_rope(hf_config(rope_parameters={**parameters, "rope_theta": 5e5}))
    rest = {key: value for key, value in parameters.items() if key != "rope_type"}
    assert read_rope(hf_config(rope_theta=5e5, rope_scaling=parameters)) == new
    assert read_rope(hf_config(rope_theta=5e5, rope_scaling={"type": parameters["rope_type"], **rest})) == new


def test_what_is_absent_is_the_default() -> None:
    rope = read_rope(hf_config())
    assert (rope.kind, rope.theta, rope.parameters) == ("default", 10000.0, {})
    assert read_rope(hf_config(rope_theta=1e6, rope_scaling=None)).theta == 1e6


def test_yarn_extends_the_context_that_it_names() -> None:
    """As Qwen2.5's model cards have it added; where no original context is named, the one that is
    there is meant.
    """
    yarn = {"factor": 4.0, "original_max_position_embeddings": 4096, "type": "yarn"}
    assert read_rope(hf_config(rope_scaling=yarn)).max_positions == 16384
    assert read_rope(hf_config(rope_scaling=yarn | {"original_max_position_embeddings": 1024})).max_positions == 4096
    assert read_rope(hf_config(rope_scaling={"factor": 4.0, "type": "yarn"})).max_positions == 4096
    assert read_rope(hf_config(rope_scaling={"factor": 4.0, "type": "linear"})).max_positions == 4096
    assert read_rope(hf_config()).max_positions == 4096


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope type 'dynamic' is not supported; there are default, linear"),
        ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
        ({"rope_type": "linear", "factor": 2.0, "surprise": 1}, "takes no 'surprise'; it takes factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"rope_type": "yarn", "factor": "4"}, "rope type 'yarn': factor='4' is no positive number"),
        ({"rope_type": "linear", "factor": 0}, "rope type 'linear': factor=0 is no positive number"),
        ("yarn", "rope_scaling='yarn' is no object"),
    ],
)
def test_what_is_not_computed_is_refused(parameters: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_rope(hf_config(rope_parameters=parameters))
