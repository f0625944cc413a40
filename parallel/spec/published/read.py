"""Reads config.json's quantization_config; what is not computed is refused by name, with what would
be.
"""

import re
from typing import Any

from parallel.errors import UnsupportedModel
from parallel.spec.published.compressed import read_compressed
from parallel.spec.published.fields import Fields
from parallel.spec.published.scheme import BLOCK, Scheme

METHODS = "awq, gptq, compressed-tensors, auto-round or fp8"
# Why, and what to do instead, of formats that people have.
REFUSED = {
    "bitsandbytes": "its codes, made when transformers loads a model or published, are not computed",
    "gguf": "a file of another program",
    "hqq": "not one of the formats that are read",
    "aqlm": "codebooks are not computed",
    "quip": "codebooks are not computed",
    "quanto": "not one of the formats that are read",
    "eetq": "not one of the formats that are read",
    "torchao": "not one of the formats that are read",
    "mxfp4": "its number format is not computed",
    "modelopt": "its number formats are not computed",
    "fbgemm_fp8": "not one of the formats that are read",
    "bitnet": "not one of the formats that are read",
    "spqr": "not one of the formats that are read",
    "vptq": "codebooks are not computed",
    "higgs": "codebooks are not computed",
}

# Of quantization_config, by what AutoAWQ, AutoGPTQ, GPTQModel, AutoRound and transformers write.
# Those without influence say how codes were found, or how another program is to compute with them.
_CODES_READ = (
    "act_bits backend bits checkpoint_format data_type dynamic format group_size is_marlin_format lm_head method "
    "modules_in_block_to_quantize modules_to_not_convert pack_dtype quant_method"
)
_CODES_WITHOUT_INFLUENCE = (
    "act_data_type act_dynamic act_group_aware act_group_size act_sym amp autoround_version batch_size "
    "block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset disable_exllama do_fuse "
    "enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config fuse_max_seq_len "
    "gradient_accumulate_steps iters low_cpu_mem_usage low_gpu_mem_usage lr max_input_length meta minmax_lr "
    "model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block modules_to_fuse mse "
    "nsamples pack_impl pad_token_id provider scale_dtype seqlen static_groups to_quant_block_names tokenizer "
    "true_sequential use_cuda_fp16 use_exllama"
)
_FP8_READ = (
    "activation_scheme expert_dtype fmt ignored_layers kv_cache_scheme modules_to_convert modules_to_not_convert "
    "quant_method weight_block_size"
)


def read_scheme(hf_config: dict[str, Any]) -> Scheme | None:
    """None if the checkpoint is not quantized. Raises UnsupportedModel."""
    found = hf_config.get("quantization_config")
    if found is None:
        return None
    if isinstance(found, dict) and ("load_in_4bit" in found or "load_in_8bit" in found):
        found = {"quant_method": "bitsandbytes"} | found  # older ones do not say it
    if not isinstance(found, dict) or not isinstance(found.get("quant_method"), str):
        raise UnsupportedModel(f"config.json: quantization_config={str(found)[:200]} names no quant_method")
    method = found["quant_method"].lower().replace("_", "-")
    readers = {"awq": _read_awq, "gptq": _read_gptq, "auto-round": _read_auto_round, "fp8": _read_fp8}
    reader = (readers | {"compressed-tensors": read_compressed}).get(method)
    if reader is None:
        why = REFUSED.get(method, REFUSED.get(method.replace("-", "_"), "not one of the formats that are read"))
        raise UnsupportedModel(
            f"config.json: the checkpoint is quantized by {found['quant_method']}, which is not supported ({why}); "
            f"get one quantized by {METHODS}, or the original one and set quantization to int4 or int8"
        )
    return reader(Fields(found))


def _read_awq(fields: Fields) -> Scheme:
    fields.check_known(_CODES_READ + " version zero_point", _CODES_WITHOUT_INFLUENCE + " desc_act sym")
    fields.require("bits", 4)
    _check_codes(fields)
    fields.require("checkpoint_format", None, "gemm")
    fields.require("format", None, "gemm")
    fields.require("zero_point", True, default=True)
    fields.require("version", "gemm", "GEMM", default="gemm")
    return Scheme(
        method="awq",
        layout="awq",
        kind="int4",
        bits=4,
        group_size=fields.group_size("group_size", 128),
        has_zeros=True,
        ignored=(*_as_parts(fields.names("modules_to_not_convert")), *_passed_over(fields)),
    )


def _read_gptq(fields: Fields) -> Scheme:
    fields.check_known(_CODES_READ + " desc_act sym", _CODES_WITHOUT_INFLUENCE)
    fields.require("bits", 4, 8)
    _check_codes(fields)
    fields.require("checkpoint_format", "gptq", "gptq_v2", "", default="gptq")
    fields.require("format", None, "gptq", "gptq_v2", "")
    bits = fields.integer("bits", 4)
    return Scheme(
        method="gptq",
        layout="gptq",
        kind="int4" if bits == 4 else "int8",
        bits=bits,
        group_size=fields.group_size("group_size", 128),
        has_zeros=True,
        has_order=True,  # it is stored in any case
        shuffles=fields.boolean("desc_act", False),
        zero_offset=0 if "gptq_v2" in (fields.get("checkpoint_format"), fields.get("format")) else 1,
        ignored=(*_as_parts(fields.names("modules_to_not_convert")), *_passed_over(fields)),
    )


def _read_auto_round(fields: Fields) -> Scheme:
    """AutoRound's own exports: the tensors of AWQ, or those of GPTQ without act-order."""
    fields.check_known(
        "bits data_type act_bits group_size lm_head packing_format quant_method sym", _CODES_WITHOUT_INFLUENCE
    )
    fields.require("packing_format", "auto_round:auto_gptq", "auto_round:auto_awq")
    is_awq = fields.get("packing_format") == "auto_round:auto_awq"
    fields.require("bits", *((4,) if is_awq else (4, 8)))
    _check_codes(fields)
    bits = fields.integer("bits", 4)
    return Scheme(
        method="auto-round",
        layout="awq" if is_awq else "gptq",
        kind="int4" if bits == 4 else "int8",
        bits=bits,
        group_size=fields.group_size("group_size", 128),
        has_zeros=True,
        zero_offset=0 if is_awq else 1,
    )


def _check_codes(fields: Fields) -> None:
    """What AWQ and GPTQ have in common."""
    fields.require("lm_head", False, default=False)
    fields.require("modules_in_block_to_quantize", None)
    fields.require("is_marlin_format", False, default=False)
    fields.require("pack_dtype", "int32", default="int32")
    fields.require("data_type", "int", default="int")
    fields.require("act_bits", None, 16, 32)
    if fields.get("backend") == "llm-awq":
        raise fields.refusal("backend", "llm-awq", "another one")


def _passed_over(fields: Fields) -> tuple[re.Pattern[str], ...]:
    """What GPTQModel's rules for some modules leave as it is: expressions that begin with "-:".
    Raises UnsupportedModel for rules that quantize in another way.
    """
    rules = fields.inner("dynamic")
    try:
        for rule in () if rules is None else rules.all():
            if not rule.startswith("-:"):
                raise fields.refusal("dynamic", rule, "rules that leave modules as they are (-:)")
        return () if rules is None else tuple(re.compile(rf"^(?:{rule[2:]})") for rule in rules.all())
    except re.error as error:
        raise fields.refusal("dynamic", str(error), "regular expressions") from None


def _read_fp8(fields: Fields) -> Scheme:
    fields.check_known(_FP8_READ, "dequantize scale_fmt")
    fields.require("modules_to_convert", None)
    fields.require("kv_cache_scheme", None)
    fields.require("expert_dtype", "fp8", default="fp8")
    fields.require("fmt", "e4m3", "float8_e4m3fn", default="e4m3")
    fields.require("activation_scheme", "dynamic", default="dynamic")
    fields.require("weight_block_size", [BLOCK, BLOCK])
    return Scheme(
        method="fp8",
        layout="blocks",
        kind="fp8",
        bits=8,
        group_size=BLOCK,
        ignored=_as_parts((*fields.names("modules_to_not_convert"), *fields.names("ignored_layers"))),
    )


def _as_parts(names: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Of names of modules, whole or neighbouring parts of them: mlp.gate is not mlp.gate_proj."""
    return tuple(re.compile(rf"(^|\.){re.escape(name.strip('.'))}(\.|$)") for name in names)
