"""Where config.json and the weights disagree about how linears are quantized, if at all."""

from collections.abc import Container

# By the ends of tensors' names: whose form they are.
FORMATS = {
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "scales": "GPTQ or AWQ",
    "g_idx": "GPTQ",
    "weight_packed": "compressed-tensors",
    "weight_scale": "compressed-tensors",
    "weight_scale_inv": "fp8 in blocks",
}
CODES = {"I8": "8-bit codes", "F8_E4M3": "float8"}  # that a `weight` may be
BESIDE_CODES = ("weight_shape", "weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point")
NEVER_CODES = {"lm_head": "head", "model.embed_tokens": "embedding"}  # whatever quantization_config says
PLAIN = "is not quantized"
FIELD = "config.json's quantization_config"
REMEDY = "take the config.json that was published with these weights"


def contradiction(name: str, dtype: str, known: Container[str], quantizes: bool) -> str | None:
    """What to say of a tensor that is not as config.json has it, behind its name; None if that is
    no matter of quantization. `known`: the names that config.json leads to; `quantizes`: whether it
    has a quantization_config.
    """
    linear, _, part = name.rpartition(".")
    if quantizes and linear in NEVER_CODES and _is_of_codes(part, dtype):
        return f"is of a quantized {NEVER_CODES[linear]}, which is not computed; one in floating point would be"
    stored = f"is in the form of {FORMATS[part]}" if part in FORMATS else None
    if part == "weight":
        stored = f"holds {CODES[dtype]}" if dtype in CODES else PLAIN
    if stored is None or not linear:
        return None
    of_config = [FORMATS[end] for end in FORMATS if f"{linear}.{end}" in known]
    if of_config:
        if FORMATS.get(part, "none") in of_config[0]:
            return None
        also = ", or remove the field" if stored == PLAIN else ""
        return f"{stored}, but by {FIELD} it is in the form of {of_config[0]}: {REMEDY}{also}"
    if f"{linear}.weight" not in known or stored == PLAIN:
        return None
    if quantizes:
        return f"{stored}, but {FIELD} leaves {linear} as it is: {REMEDY}"
    return f"{stored}, but config.json has no quantization_config: {REMEDY}"


def _is_of_codes(part: str, dtype: str) -> bool:
    return part in FORMATS or part in BESIDE_CODES or (part == "weight" and dtype in CODES)
