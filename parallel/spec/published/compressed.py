"""Reads what compressed-tensors (llm-compressor) writes into quantization_config."""

import re

from parallel.spec.published.fields import Fields
from parallel.spec.published.scheme import BLOCK, Layout, Scheme

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_READ = "config_groups format ignore kv_cache_scheme quant_method quantization_status sparsity_config transform_config"
_WITHOUT_INFLUENCE = "dequantize global_compression_ratio run_compressed use_optimized_inference version"
# Of weights and of inputs. Types of scales and zero points are those of the tensors that are there.
_ARGS = "actorder block_structure dynamic group_size num_bits strategy symmetric type"
_ARGS_WITHOUT_INFLUENCE = "observer observer_kwargs scale_dtype zp_dtype"


def read_compressed(fields: Fields) -> Scheme:
    """Raises UnsupportedModel."""
    fields.check_known(_READ, _WITHOUT_INFLUENCE)
    fields.require("quantization_status", "compressed", "frozen", default="compressed")  # frozen: of early releases
    fields.require("kv_cache_scheme", None)
    sparsity = fields.inner("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise sparsity.refusal("format", sparsity.get("format"), "'dense'")
    transforms = fields.inner("transform_config")
    if transforms is not None and any(transforms.get(name) for name in transforms.all()):
        raise fields.refusal("transform_config", fields.get("transform_config"), "none")
    groups = fields.inner("config_groups")
    names = [] if groups is None else sorted(groups.all())
    if groups is None or len(names) != 1:
        raise fields.refusal("config_groups", ", ".join(names), "one group")
    group = groups.inner(names[0])
    if group is None:
        raise groups.refusal(names[0], None, "a description of the group")
    group.check_known("format input_activations output_activations targets weights")
    form = group.get("format") or fields.get("format")
    if form not in FORMATS:
        raise fields.refusal("format", form, " or ".join(FORMATS))
    weights = group.inner("weights")
    if weights is None:
        raise group.refusal("weights", None, "a description of the weights")
    if group.get("output_activations") is not None:
        raise group.refusal("output_activations", group.get("output_activations"), "null")
    ignored = _patterns(fields, "ignore")
    inputs = group.inner("input_activations")
    for args in (weights, inputs):
        if args is not None:
            args.check_known(_ARGS, _ARGS_WITHOUT_INFLUENCE)
    return _read_weights(form, weights, inputs, (*ignored, *_beside(group)))


def _read_weights(form: str, weights: Fields, inputs: Fields | None, ignored: tuple[re.Pattern[str], ...]) -> Scheme:
    weights.require("num_bits", 4, 8)
    weights.require("type", "int", "float")
    weights.require("strategy", "tensor", "channel", "group", "block")
    weights.require("dynamic", False, default=False)
    is_float, bits = weights.get("type") == "float", weights.integer("num_bits", 8)
    strategy, is_symmetric = weights.get("strategy"), weights.boolean("symmetric", True)
    is_packed = form == "pack-quantized"
    if is_float and (bits != 8 or is_packed):
        raise weights.refusal("num_bits", bits, "float of 8 bits, not packed,")
    if strategy == "block":
        weights.require("block_structure", [BLOCK, BLOCK])
        if not is_float:
            raise weights.refusal("strategy", strategy, "for integers 'channel', 'group' or 'tensor'")
    if not is_symmetric and not is_packed:
        raise weights.refusal("symmetric", False, "if codes are not packed, true")
    if bits == 4 and not is_packed:
        raise weights.refusal("num_bits", bits, "4 bits, packed ('pack-quantized'),")
    layout: Layout = "packed" if is_packed else "blocks" if strategy == "block" else "float8" if is_float else "int8"
    rounds_inputs = inputs is not None and not is_float
    has_order = weights.get("actorder") in ("group", "dynamic", True)  # True: of early releases
    if rounds_inputs:
        _check_inputs(weights, inputs, is_packed)
    grouped = {"group": weights.group_size("group_size", None), "block": BLOCK}
    return Scheme(
        method="compressed-tensors",
        layout=layout,
        kind="w8a8" if rounds_inputs else "fp8" if is_float else "int4" if bits == 4 else "int8",
        bits=bits,
        group_size=grouped.get(strategy),
        has_zeros=not is_symmetric,
        has_order=has_order,
        shuffles=has_order,
        input_scale=rounds_inputs and inputs is not None and not inputs.boolean("dynamic", False),
        ignored=ignored,
    )


def _check_inputs(weights: Fields, inputs: Fields | None, is_packed: bool) -> None:
    """Of products of integers: whole rows have one scale each."""
    assert inputs is not None
    if is_packed:
        raise inputs.refusal("num_bits", inputs.get("num_bits"), "for packed codes no rounding of inputs")
    inputs.require("num_bits", 8)
    inputs.require("type", "int")
    inputs.require("symmetric", True, default=True)
    inputs.require("strategy", "token", "tensor")
    weights.require("strategy", "channel", "tensor")


def _patterns(fields: Fields, name: str) -> tuple[re.Pattern[str], ...]:
    found = fields.names(name)
    try:
        return tuple(
            re.compile(rf"^(?:{each[3:]})" if each.startswith("re:") else rf"^{re.escape(each)}(\.|$)")
            for each in found
        )
    except re.error as error:
        raise fields.refusal(name, str(error), "regular expressions") from None


def _beside(group: Fields) -> tuple[re.Pattern[str], ...]:
    """What is ignored because the group's targets do not name it."""
    targets = group.names("targets")
    if not targets or "Linear" in targets:
        return ()
    wanted = "|".join(f"(?:{pattern.pattern})" for pattern in _patterns(group, "targets"))
    return (re.compile(rf"^(?!.*(?:{wanted}))"),)
