"""Reads config.json's quantization_config; what is not computed is refused by name, with what would
be.
"""

import re
from typing import Any

from parallel.errors import UnsupportedModel
from parallel.spec.published.compressed import read_compressed
from parallel.spec.published.fields import Fields
from parallel.spec.published.scheme import BLOCK, Scheme

METHODS = "awq, gptq, compressed-tensors and fp8"
# Why, and what to do instead, of formats that people have.
REFUSED = {
    "bitsandbytes": "its codes are made when transformers loads them",
    "gguf": "a file of another program",
    "hqq": "not one of the formats that are read",
    "aqlm": "codebooks are not computed",
    "quip": "codebooks are not computed",
    "quanto": "not one of the formats that are read",
    "eetq": "not one of the formats that are read",
    "torchao": "not one of the formats that are read",
    "mxfp4": "its number format is not computed",
    "modelopt": "its number formats are not computed",
    "auto-round": "export it with format auto_gptq or auto_awq",
    "fbgemm_fp8": "not one of the formats that are read",
    "bitnet": "not one of the formats that are read",
    "spqr": "not one of the formats that are read",
    "vptq": "codebooks are not computed",
    "higgs": "codebooks are not computed",
}


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
    reader = {"awq": _read_awq, "gptq": _read_gptq, "compressed-tensors": read_compressed, "fp8": _read_fp8}.get(method)
    if reader is None:
        why = REFUSED.get(method, REFUSED.get(method.replace("-", "_"), "not one of the formats that are read"))
        raise UnsupportedModel(
            f"config.json: the checkpoint is quantized by {found['quant_method']}, which is not supported ({why}); "
            f"get one quantized by {METHODS}, or the original one and set quantization to int4 or int8"
        )
    return reader(Fields(found))


def _read_awq(fields: Fields) -> Scheme:
    fields.require("bits", 4)
    fields.require("zero_point", True, default=True)
    fields.require("version", "gemm", "GEMM", default="gemm")
    return Scheme(
        method="awq",
        layout="awq",
        kind="int4",
        bits=4,
        group_size=fields.group_size("group_size", 128),
        has_zeros=True,
        ignored=_as_parts(fields.names("modules_to_not_convert")),
    )


def _read_gptq(fields: Fields) -> Scheme:
    fields.require("bits", 4, 8)
    fields.require("checkpoint_format", "gptq", "gptq_v2", "", default="gptq")
    fields.require("lm_head", False, default=False)
    fields.require("modules_in_block_to_quantize", None, default=None)
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
        zero_offset=0 if fields.get("checkpoint_format") == "gptq_v2" else 1,
        ignored=(*_as_parts(fields.names("modules_to_not_convert")), *_passed_over(fields)),
    )


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
