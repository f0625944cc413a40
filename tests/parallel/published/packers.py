"""Packs linears as the published formats describe it, and says which numbers the codes stand for.

Written from the formats' specifications, not from the readers: AutoAWQ's gemm layout, AutoGPTQ's,
compressed-tensors' packed, int8 and float8 ones, and the float8 blocks of Qwen3-FP8.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column in each four bits of a word, lowest first


@dataclass(frozen=True)
class Format:
    """config.json's quantization_config, and how a weight [out, in] is stored, with the numbers
    that it then has.
    """

    config: dict[str, Any]
    pack: Callable[[Tensor], tuple[Tensors, Tensor]]
    rounds_inputs: bool = False
    input_scale: float | None = None


def to_codes(weight: Tensor, groups: Tensor, bits: int, *, is_symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in] and zero points [out, G], int64; scales [out, G], of numbers that float16
    has.
    """
    zeros, scales = [], []
    middle, last = 1 << (bits - 1), (1 << bits) - 1
    for group in range(int(groups.max()) + 1):
        numbers = weight[:, groups == group]
        low, high = numbers.amin(1).clamp(max=0), numbers.amax(1).clamp(min=0)
        spread = 2 * torch.maximum(-low, high) if is_symmetric else high - low
        scale = (spread / last).half().float()
        scales.append(scale)
        zeros.append(torch.full_like(scale, middle) if is_symmetric else (-low / scale).round().clamp(0, last))
    zero, scale = torch.stack(zeros, 1), torch.stack(scales, 1)
    codes = (weight / scale[:, groups] + zero[:, groups]).round().clamp(0, last)
    return codes.long(), zero.long(), scale


def numbers(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    return (codes - zeros[:, groups]).float() * scales[:, groups]


def pack_columns(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """codes [rows, n] -> words [rows, n / codes of a word] int32."""
    each = 32 // bits
    words = torch.zeros(codes.shape[0], -(-codes.shape[1] // each), dtype=torch.int64)
    for place in range(each):
        found = codes[:, (order or range(each))[place] :: each]
        words[:, : found.shape[1]] |= found << (place * bits)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def regular(num_in: int, size: int) -> Tensor:
    return torch.arange(num_in) // size


def awq(size: int = 128) -> Format:
    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        groups = regular(weight.shape[1], size)
        codes, zeros, scales = to_codes(weight, groups, 4, is_symmetric=False)
        stored = {
            "qweight": pack_columns(codes.T, 4, AWQ_ORDER),
            "qzeros": pack_columns(zeros.T, 4, AWQ_ORDER),
            "scales": scales.T.half(),
        }
        return stored, numbers(codes, zeros, scales, groups)

    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return Format(config | {"modules_to_not_convert": ["layers.1.self_attn"]}, pack)


def gptq(bits: int, *, has_order: bool, is_symmetric: bool, size: int = 128, is_v2: bool = False) -> Format:
    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        num_out, num_in = weight.shape
        generator = torch.Generator().manual_seed(num_out + num_in)
        groups = regular(num_in, size)
        if has_order:
            groups = groups[torch.randperm(num_in, generator=generator)]
        codes, zeros, scales = to_codes(weight, groups, bits, is_symmetric=is_symmetric)
        words = pack_columns(zeros.T, bits)
        stored = {
            "qweight": pack_columns(codes.T.T, bits).T.contiguous(),
            # As GPTQModel and AutoRound subtract: a zero point of 0 borrows from the next one.
            "qzeros": words if is_v2 else words - pack_columns(torch.ones(1, 32 // bits, dtype=torch.int64), bits),
            "scales": scales.T.half().contiguous(),
            "g_idx": groups.int(),
            "bias": torch.zeros(num_out, dtype=torch.float16),  # as some packers have it
        }
        return stored, numbers(codes, zeros, scales, groups)

    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": is_symmetric, "desc_act": has_order}
    return Format(config | {"checkpoint_format": "gptq_v2" if is_v2 else "gptq"}, pack)


def packed(bits: int, *, size: int | None, is_symmetric: bool, has_order: bool = False) -> Format:
    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        num_out, num_in = weight.shape
        groups = regular(num_in, size or num_in)
        if has_order:
            groups = groups.flip(0)
        codes, zeros, scales = to_codes(weight, groups, bits, is_symmetric=is_symmetric)
        stored = {
            "weight_packed": pack_columns(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([num_out, num_in]),
        }
        if not is_symmetric:
            stored["weight_zero_point"] = pack_columns(zeros.T, bits).T.contiguous()
        if has_order:
            stored["weight_g_idx"] = groups.int()
        return stored, numbers(codes, zeros, scales, groups)

    weights = {"num_bits": bits, "type": "int", "symmetric": is_symmetric, "group_size": size}
    weights |= {"strategy": "group" if size else "channel", "actorder": "group" if has_order else None}
    return Format(compressed("pack-quantized", weights, None), pack)


def int8(input_scale: float | None) -> Format:
    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        groups = regular(weight.shape[1], weight.shape[1])
        codes, zeros, scales = to_codes(weight, groups, 8, is_symmetric=True)
        stored = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
        if input_scale is not None:
            stored["input_scale"] = torch.tensor([input_scale])
        return stored, numbers(codes, zeros, scales, groups)

    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": input_scale is None}
    inputs["strategy"] = "token" if input_scale is None else "tensor"
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return Format(compressed("int-quantized", weights, inputs), pack, rounds_inputs=True, input_scale=input_scale)


def float8(strategy: str) -> Format:
    """tensor, channel: compressed-tensors'."""

    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448 if strategy == "channel" else weight.abs().amax() / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        stored = {"weight": codes, "weight_scale": scale if strategy == "channel" else scale.reshape(1)}
        return stored, codes.float() * scale

    inputs = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
    return Format(compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": strategy}, inputs), pack)


def float8_blocks() -> Format:
    def pack(weight: Tensor) -> tuple[Tensors, Tensor]:
        padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 128, 0, -weight.shape[0] % 128))
        blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        scales = blocks.abs().amax((1, 3)) / 448
        each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
        codes = (weight / each).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scales}, codes.float() * each

    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return Format(config | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.down_proj"]}, pack)


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*layers[.]0[.]self_attn[.]o_proj"],
    }


def is_ignored(config: dict[str, Any], name: str) -> bool:
    """Of the patterns above."""
    parts = ("layers.1.self_attn", "layers.0.mlp.down_proj", "layers.0.self_attn.o_proj")
    return any(part in name for part, key in zip(parts, each_pattern(config), strict=True) if key)


def each_pattern(config: dict[str, Any]) -> Iterator[bool]:
    yield config["quant_method"] == "awq"
    yield config["quant_method"] == "fp8"
    yield config["quant_method"] == "compressed-tensors"


FORMATS = {
    "awq": awq(),
    "gptq 4": gptq(4, has_order=False, is_symmetric=True),
    "gptq 4 act-order": gptq(4, has_order=True, is_symmetric=False),
    "gptq 8": gptq(8, has_order=False, is_symmetric=True, size=64),
    "gptq 8 zeros act-order v2": gptq(8, has_order=True, is_symmetric=False, is_v2=True),
    "W4A16": packed(4, size=128, is_symmetric=True),
    "W4A16 zeros": packed(4, size=32, is_symmetric=False),
    "W4A16 act-order": packed(4, size=128, is_symmetric=True, has_order=True),
    "W8A16": packed(8, size=None, is_symmetric=True),
    "W8A8": int8(None),
    "W8A8 static": int8(0.03),
    "FP8 channel": float8("channel"),
    "FP8 tensor": float8("tensor"),
    "FP8 blocks": float8_blocks(),
}
