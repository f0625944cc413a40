"""Models whose layers keep a state that is no cache of keys are refused by name: docs/hybrid.md."""

import pytest
from transformers import Qwen3NextConfig

from parallel.errors import UnsupportedModel
from parallel.spec import read

WHY = "its gated delta net layers, which overwrite a state with every token, are not computed"


@pytest.mark.parametrize(
    "name",
    ["Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
)
def test_they_are_refused_by_name(name: str) -> None:
    config = Qwen3NextConfig().to_dict() | {"architectures": [name]}
    with pytest.raises(UnsupportedModel, match=f"{name}: {WHY}; there is Qwen2"):
        read(config)
