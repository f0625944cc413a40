from typing import Any

import pytest
import torch
from transformers import Qwen2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from parallel.rotary import cos_sin_table, inverse_frequencies
from parallel.spec.rope import read_rope
from tests.mkl_calls import begin_in_one_thread
from tests.parallel.spec.ropes import KINDS, hf_config


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


def test_they_are_first_computed_by_one_thread() -> None:
    """Else a process may have other tables than the others, for good."""
    rope = read_rope(hf_config())
    with begin_in_one_thread():
        cos_sin_table(rope, 64, 2048)
