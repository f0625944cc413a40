"""quantization_config as people have it: what is read, and what is refused by name."""

from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec import read
from parallel.spec.published.read import REFUSED, read_scheme
from parallel.spec.published.scheme import Scheme
from tests.parallel.published.packers import FORMATS, compressed
from tests.parallel.spec.configs import hf_config, qwen3_moe

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128, "strategy": "group"}
Q_PROJ = "model.layers.3.self_attn.q_proj"


def scheme_of(config: dict[str, Any]) -> Scheme:
    scheme = read_scheme({"quantization_config": config})
    assert scheme is not None
    return scheme


def packed_with(**changes: Any) -> dict[str, Any]:
    return compressed("pack-quantized", WEIGHTS | changes, None)


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_that_are_read(name: str) -> None:
    assert scheme_of(FORMATS[name].config).is_quantized(Q_PROJ)


def test_a_checkpoint_may_be_plain() -> None:
    assert read_scheme({}) is None
    assert read_scheme({"quantization_config": None}) is None


def test_tensors_that_stand_for_a_weight() -> None:
    spec = read(hf_config(quantization_config=AWQ))
    forms = spec.forms()
    assert forms[f"{Q_PROJ}.qweight"].shape == (896, 112)
    assert forms[f"{Q_PROJ}.qzeros"].shape == (7, 112)
    assert forms[f"{Q_PROJ}.scales"].shape == (7, 896)
    assert f"{Q_PROJ}.weight" not in forms
    assert forms[f"{Q_PROJ}.bias"].shape == (896,)
    assert forms["model.embed_tokens.weight"].dtypes == ("F32", "F16", "BF16")


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (AWQ | {"modules_to_not_convert": ["mlp.gate", "layers.3.self_attn"]}, (False, True, True)),
        (AWQ | {"modules_to_not_convert": ["model.layers.3.self_attn.q_proj"]}, (False, True, True)),
        (AWQ | {"modules_to_not_convert": ["layers.3"]}, (False, True, False)),
        (GPTQ | {"dynamic": {"-:.*experts": {}, "-:layers.30": {}}}, (True, True, False)),
        (packed_with() | {"ignore": ["re:.*mlp.*"]}, (True, False, False)),
        (packed_with() | {"ignore": [Q_PROJ, "lm_head"]}, (False, True, True)),
    ],
)
def test_linears_that_are_left_as_they_are(config: dict[str, Any], names: tuple[bool, bool, bool]) -> None:
    scheme = scheme_of(config)
    found = (Q_PROJ, "model.layers.30.mlp.gate_proj", "model.layers.3.mlp.experts.7.down_proj")
    assert tuple(scheme.is_quantized(name) for name in found) == names
    assert not scheme.is_quantized("lm_head")
    assert not scheme.is_quantized("model.layers.3.mlp.gate")


def test_targets_name_what_is_quantized() -> None:
    config = packed_with()
    config["config_groups"]["group_0"]["targets"] = ["re:.*mlp[.]down_proj$"]
    assert not scheme_of(config).is_quantized(Q_PROJ)
    assert scheme_of(config).is_quantized("model.layers.0.mlp.down_proj")


@pytest.mark.parametrize("method", REFUSED)
def test_other_formats_are_refused_by_name(method: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"quantized by {method}, which is not supported .*awq, gptq, comp"):
        read_scheme({"quantization_config": {"quant_method": method}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "quantized by bitsandbytes, which is not supported"),
        ("4 bits", "quantization_config=4 bits names no quant_method"),
        (AWQ | {"bits": 3}, r"bits=3 is not supported; 4 is"),
        (AWQ | {"version": "gemv"}, "version='gemv' is not supported; 'gemm'"),
        (AWQ | {"zero_point": False}, "zero_point=False is not supported; True is"),
        (AWQ | {"group_size": 100}, "group_size=100 is not supported; a multiple of 8"),
        (AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert='lm_head' is not supported; a list"),
        (GPTQ | {"bits": 2}, "bits=2 is not supported; 4 or 8 is"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        (GPTQ | {"lm_head": True}, "lm_head=True is not supported; False is"),
        (
            GPTQ | {"dynamic": {"-:.*gate": {}, "+:.*q_proj": {"bits": 8}}},
            r"dynamic='\+:.*q_proj' is not",
        ),
        (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic='missing"),
        (FP8 | {"weight_block_size": None}, "weight_block_size=None"),
        (FP8 | {"activation_scheme": "static"}, "activation_scheme='static'"),
        (packed_with(num_bits=3), "weights.num_bits=3"),
        (compressed("marlin-24", WEIGHTS, None), "format='marlin-24'"),
        (compressed("nvfp4-pack-quantized", WEIGHTS, None), "format='nvfp4-pack-quantized'"),
        (compressed("pack-quantized", WEIGHTS, {"num_bits": 8, "type": "int"}), "no rounding of inputs"),
        (packed_with() | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme="),
        (packed_with() | {"config_groups": {"a": {}, "b": {}}}, "config_groups='a, b' is not supported; one group is"),
    ],
)
def test_what_is_not_computed_is_refused(config: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_scheme({"quantization_config": config})


@pytest.mark.parametrize("left", ["v_proj", "layers.7.mlp.up_proj"])
def test_linears_that_are_multiplied_as_one_are_quantized_alike(left: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"only one of .*_proj and {left.rpartition('.')[2]} is quantized"):
        read(hf_config(quantization_config=AWQ | {"modules_to_not_convert": [left]}))
    read(hf_config(quantization_config=AWQ | {"modules_to_not_convert": ["self_attn", "mlp.gate_proj", "mlp.up_proj"]}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTQ | {"desc_act": True}, r"experts with inputs in order of their groups \(act-order\) are not computed"),
        (FORMATS["W8A8"].config, "experts with inputs rounded to 8 bits are not computed"),
    ],
)
def test_what_experts_cannot_have_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(qwen3_moe(quantization_config=config))
    assert read(qwen3_moe(quantization_config=GPTQ)).scheme is not None
