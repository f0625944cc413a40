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
AUTO_ROUND = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
AUTO_ROUND |= {"bits": 4, "group_size": 128, "sym": True}
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


# As programs write them, with all that has no influence.
AS_WRITTEN = {
    "AutoAWQ": AWQ | {"modules_to_not_convert": None},
    "transformers, of AWQ": AWQ
    | {"backend": "autoawq", "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None}
    | {"modules_to_fuse": None, "modules_to_not_convert": ["visual"], "batch_size": 1, "true_sequential": True}
    | {"cache_block_outputs": True, "damp_percent": 0.1, "desc_act": False, "sym": True, "format": "gemm"},
    "AutoGPTQ": GPTQ
    | {"damp_percent": 0.01, "static_groups": False, "true_sequential": True, "model_name_or_path": None}
    | {"model_file_base_name": "model", "is_marlin_format": False},
    "transformers, of GPTQ": GPTQ
    | {"batch_size": 1, "block_name_to_quantize": "model.layers", "cache_block_outputs": True, "damp_percent": 0.01}
    | {"dataset": "c4", "exllama_config": {"version": 1}, "max_input_length": None, "model_seqlen": 2048}
    | {"module_name_preceding_first_block": ["model.embed_tokens"], "modules_in_block_to_quantize": None}
    | {"pad_token_id": None, "tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True},
    "GPTQModel": GPTQ
    | {"lm_head": False, "method": "gptq", "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32"}
    | {"meta": {"quantizer": ["gptqmodel:5.7.0"], "damp_percent": 0.05, "mse": 0.0}, "pack_impl": "cpu"},
    "GPTQModel, of AWQ": AWQ
    | {"lm_head": False, "desc_act": False, "format": "gemm", "checkpoint_format": "gemm", "pack_dtype": "int32"},
    "AutoRound": GPTQ
    | {"autoround_version": "0.4.5", "amp": True, "batch_size": 8, "data_type": "int", "iters": 512, "lr": 0.002}
    | {"enable_minmax_tuning": True, "enable_quanted_input": True, "minmax_lr": 0.002, "nsamples": 512, "act_bits": 16}
    | {"scale_dtype": "torch.float16", "seqlen": 2048, "low_gpu_mem_usage": True, "gradient_accumulate_steps": 1},
    "AutoRound, its own": AUTO_ROUND
    | {"amp": False, "autoround_version": "0.16.1", "block_name_to_quantize": "model.layers", "data_type": "int"}
    | {"enable_quanted_input": False},
    "AutoRound, its own with zero points": AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "sym": False},
    "llm-compressor": packed_with(actorder="static", block_structure=None, dynamic=False, observer="mse")
    | {"global_compression_ratio": None, "kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {}}
    | {"version": "0.12.2"},
    "llm-compressor, of types": packed_with(observer_kwargs={"maxshrink": 0.2}, scale_dtype=None, zp_dtype="torch.int8")
    | {"sparsity_config": {"format": "dense", "global_sparsity": 0.1}, "transform_config": {"config_groups": {}}},
    "compressed-tensors, of early releases": packed_with(block_structure=None, dynamic=False, actorder=False)
    | {"global_compression_ratio": 1.24, "quantization_status": "frozen"},
    "transformers, of FP8": FP8 | {"modules_to_not_convert": ["lm_head"], "scale_fmt": "float", "dequantize": False},
}


@pytest.mark.parametrize("program", AS_WRITTEN)
def test_what_has_no_influence_is_accepted(program: str) -> None:
    assert scheme_of(AS_WRITTEN[program]).is_quantized(Q_PROJ)


HADAMARD = {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (packed_with() | {"transform_config": HADAMARD}, "transform_config={.*hadamard.*} is not supported; none is"),
        (packed_with() | {"spin": [1]}, r"quantization_config\.spin=\[1\] is not known here, and not computed"),
        (packed_with(scale_format="ue5m3"), r"group_0\.weights\.scale_format='ue5m3' is not known here"),
        (compressed("int-quantized", WEIGHTS | {"num_bits": 8}, {"smooth": 2}), r"input_activations\.smooth=2 is not"),
        (AWQ | {"rotation": "hadamard"}, "rotation='hadamard' is not known here"),
        (AWQ | {"backend": "llm-awq"}, "backend='llm-awq'"),
        (AWQ | {"checkpoint_format": "gemv"}, "checkpoint_format='gemv'"),
        (GPTQ | {"rotation": "hadamard"}, "rotation='hadamard' is not known here"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format=True"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype='int16'"),
        (GPTQ | {"format": "bitblas"}, "format='bitblas'"),
        (GPTQ | {"act_bits": 8}, "act_bits=8"),
        (GPTQ | {"extra_config": {"model.layers.0": {"bits": 8}}}, "extra_config={.*} is not known here"),
        (AUTO_ROUND | {"extra_config": {"model.layers.0": {"bits": 8}}}, "extra_config={.*} is not known here"),
        (AUTO_ROUND | {"packing_format": "auto_round:gptqmodel"}, "packing_format='auto_round:gptqmodel'"),
        (AUTO_ROUND | {"data_type": "mx_fp"}, "data_type='mx_fp'"),
        (FP8 | {"expert_dtype": "fp4"}, "expert_dtype='fp4'"),
        (FP8 | {"modules_to_convert": ["embed_tokens"]}, "modules_to_convert="),
        (FP8 | {"online_rotation": True}, "online_rotation=True is not known here"),
    ],
)
def test_what_is_not_known_is_refused(config: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_scheme({"quantization_config": config})


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
    by_gptq, by_autoround = (read(hf_config(quantization_config=config)).forms() for config in (GPTQ, AUTO_ROUND))
    orders = {name for name in by_gptq if name.endswith(".g_idx")}
    assert orders and by_autoround == {name: form for name, form in by_gptq.items() if name not in orders}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (AWQ | {"modules_to_not_convert": ["mlp.gate", "layers.3.self_attn"]}, (False, True, True)),
        (AWQ | {"modules_to_not_convert": ["model.layers.3.self_attn.q_proj"]}, (False, True, True)),
        (AWQ | {"modules_to_not_convert": ["layers.3"]}, (False, True, False)),
        (AWQ | {"dynamic": {"-:.*experts": {}}}, (True, True, False)),
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


def test_inputs_of_which_nothing_is_said_have_the_scale_that_is_stored() -> None:
    """As compressed-tensors' own default has it."""
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor"}
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    scheme = scheme_of(compressed("int-quantized", weights, inputs))
    assert scheme.input_scale
    assert not scheme_of(compressed("int-quantized", weights, inputs | {"dynamic": True})).input_scale
    assert f"{Q_PROJ}.input_scale" not in scheme.unused({f"{Q_PROJ}.weight": (896, 896)})


@pytest.mark.parametrize("order", ["group", True])
def test_an_order_of_inputs_by_both_its_names(order: str | bool) -> None:
    """True, of early releases, is what they called "group" later."""
    scheme = scheme_of(packed_with(actorder=order))
    assert scheme.has_order and scheme.shuffles


@pytest.mark.parametrize("method", REFUSED)
def test_other_formats_are_refused_by_name(method: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"quantized by {method}, which is not supported .*awq, gptq, comp"):
        read_scheme({"quantization_config": {"quant_method": method}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            r"by bitsandbytes, which .* made when .* or published, are not computed.*auto-round or fp8",
        ),
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
        (packed_with() | {"ignore": ["re:*q_proj"]}, "ignore='nothing to repeat.* is not supported; regular"),
        (packed_with() | {"quantization_status": "calibration"}, "quantization_status='calibration' is not"),
        (packed_with() | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme="),
        (packed_with() | {"config_groups": {"a": None}}, "config_groups.a=None is not supported; a description of"),
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
