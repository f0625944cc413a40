import json
import math

import pytest

from parallel.errors import InvalidAdapter
from parallel.spec import read
from parallel.spec.adapter import AdapterConfig, Pair, pairs
from tests.engine.worker.tiny import hf_config

MODEL = read(hf_config(16, 250))
EXPERTS = read(hf_config(16, 250, num_experts=4))
PREFIX = "base_model.model.model.layers.0."
Q = f"{PREFIX}self_attn.q_proj"
SHAPES = {f"{Q}.lora_A.weight": (4, 64), f"{Q}.lora_B.weight": (64, 4)}


def config(**changes: object) -> AdapterConfig:
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"]}
    return AdapterConfig.parse(json.dumps(values | changes).encode(), "config")


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 1.5),
        ({"use_rslora": True}, 3.0),
        ({"r": 8, "rank_pattern": {"q_proj": 4}}, 1.5),
        ({"r": 8, "rank_pattern": {"layers.0.self_attn.q_proj": 4, "q_proj": 9}}, 1.5),
        ({"r": 8, "rank_pattern": {"^model.layers.0.self_attn.q_proj": 4}, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"v_proj": 2}}, 1.5),
        ({"alpha_pattern": {"q.proj": 2}}, 0.5),  # a regular expression, as in PEFT
        ({"alpha_pattern": {"self_attn": 2, "proj": 2, "^q_proj": 2}}, 1.5),
        ({"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["k_proj"]}, 1.5),
        ({"target_modules": "all-linear", "lora_dropout": 0.1, "layers_to_transform": [0]}, 1.5),
    ],
)
def test_scales_are_those_of_peft(changes: dict[str, object], scale: float) -> None:
    found = pairs(config(**changes), SHAPES, MODEL)
    assert found == {
        "model.layers.0.self_attn.q_proj": Pair(f"{Q}.lora_A.weight", f"{Q}.lora_B.weight", pytest.approx(scale))
    }


def test_a_model_without_its_head_names_its_layers_alone() -> None:
    shapes = {name.replace("model.model.", "model."): shape for name, shape in SHAPES.items()}
    assert list(pairs(config(), shapes, MODEL)) == ["model.layers.0.self_attn.q_proj"]
    own = "layers.0.self_attn.q_proj"
    (found,) = pairs(config(alpha_pattern={f"model.{own}": 9, f"^{own}": 2}), shapes, MODEL).values()
    assert found.scale == pytest.approx(0.5)


def test_a_factor_by_both_names_is_refused() -> None:
    other = {name.replace("model.model.", "model."): shape for name, shape in SHAPES.items() if "lora_A" in name}
    with pytest.raises(InvalidAdapter, match=rf"^{Q}.lora_A.weight and base_model.model.layers.0.* two names$"):
        pairs(config(), SHAPES | other, MODEL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora=True asks for DoRA"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\] asks for whole modules"),
        ({"fan_in_fan_out": True}, "transposed weights"),
        ({"lora_bias": True}, "biases of the adapter"),
        ({"bias": "all"}, "bias='all' changes the model's biases"),
        ({"init_lora_weights": "pissa_niter_16"}, "path_initial_model_for_weight_conversion"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters=.* is not known here"),
        ({"r": 257}, "r=257: ranks are whole numbers from 1 to 256"),
        ({"r": True}, "r=True"),
        ({"use_rslora": 1}, "use_rslora=1 is neither true nor false"),
        ({"lora_alpha": math.inf}, "lora_alpha=inf is no number"),
        ({"lora_alpha": 10**400}, "lora_alpha=10+ is no number"),
        ({"alpha_pattern": {"q_proj": -(10**400)}}, "alpha_pattern=-10+ is no number"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern=0"),
        ({"rank_pattern": {".*q_proj": 4}}, "which is no name of a module"),
        ({"alpha_pattern": [1]}, "alpha_pattern holds list"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidAdapter, match=message):
        config(**changes)


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
def test_a_configuration_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidAdapter, match="config"):
        AdapterConfig.parse(text, "config")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "q_proj, of which there is no tensor"),
        ({**SHAPES, f"{PREFIX}mlp.up_proj.lora_A.weight": (4, 64)}, "mlp.up_proj has no lora_B"),
        ({**SHAPES, f"{Q}.lora_B.weight": (64, 5)}, r"has shape \[64, 5\], not \[64, 4\]$"),
        ({**SHAPES, f"{Q}.lora_B.weight": (32, 4)}, r"not \[64, 4\]; it is probably an adapter of another model$"),
        ({**SHAPES, f"{Q}.lora_magnitude_vector": (64,)}, "is no low-rank factor"),
        ({**SHAPES, "base_model.model.lm_head.weight": (250, 64)}, "lm_head.weight is no low-rank factor"),
        ({**SHAPES, "base_model.model.lm_head.lora_A.weight": (4, 64)}, "lm_head has an adapter"),
        ({**SHAPES, f"{PREFIX}self_attn.w_proj.lora_A.weight": (4, 64)}, "the model has no linear .*w_proj"),
        ({**SHAPES, f"{PREFIX}input_layernorm.lora_A.weight": (4, 64)}, "the model has no linear"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_named(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvalidAdapter, match=message):
        pairs(config(), shapes, MODEL)


def test_experts_are_refused_by_name() -> None:
    shapes = {f"{PREFIX}mlp.experts.1.up_proj.lora_A.weight": (4, 64)}
    with pytest.raises(InvalidAdapter, match="of an expert"):
        pairs(config(target_modules=["up_proj"]), shapes, EXPERTS)
