"""What llm-compressor writes: compressed-tensors' own observers' formulas, packers and config."""

from pathlib import Path
from typing import Any

import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, disable_quantization
from compressed_tensors.quantization.utils import calculate_qparams

from tests.parallel.published.own.made import COMPRESSED, INPUT_SCALE, UNQUANTIZED, load, save_logits
from tests.parallel.published.publish import round_inputs


def make(plain: str, name: str, folder: Path) -> None:
    weights, inputs = COMPRESSED[name]
    # transformers loads packed zero points only if it multiplies them out at once, in scales' type.
    at_once = not weights["symmetric"]
    model = load(plain, dtype=torch.float32 if at_once else torch.bfloat16)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    ignore = ["lm_head", UNQUANTIZED]
    config = QuantizationConfig(config_groups={"group_0": group}, ignore=ignore, quantization_status="initialized")
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            _calibrate(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    options = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)} if at_once else {}
    loaded = load(folder, dtype=torch.float32, **options)
    loaded(torch.tensor([[1]]))  # multiplies codes by scales
    loaded.apply(disable_quantization)  # of inputs, which are rounded as we do it, or not at all
    if inputs is not None and inputs["type"] == "int":
        linears = [name for name, module in model.named_modules() if hasattr(module, "weight_scale")]
        round_inputs(loaded, linears, None if inputs["dynamic"] else INPUT_SCALE)
    save_logits(loaded, folder)


def _calibrate(linear: Any) -> None:
    """Scales and zero points by the weight's smallest and largest numbers."""
    args, weight = linear.quantization_scheme.weights, linear.weight.float()
    match args.strategy:
        case "tensor":
            parts, dims = weight, (0, 1)
        case "channel":
            parts, dims = weight, (1,)
        case "group":
            parts, dims = weight.unflatten(1, (-1, args.group_size)), (2,)
        case _:
            parts, dims = weight.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)), (1, 3)
    scale, zero = calculate_qparams(parts.amin(dims), parts.amax(dims), args)
    linear.weight_scale.data.copy_(scale.reshape(linear.weight_scale.shape))
    if hasattr(linear, "weight_zero_point"):
        linear.weight_zero_point.data.copy_(zero.reshape(linear.weight_zero_point.shape))
    if hasattr(linear, "input_scale"):
        linear.input_scale.data.fill_(INPUT_SCALE)
