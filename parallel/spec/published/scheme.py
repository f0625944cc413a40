"""How a checkpoint stores the linears that were quantized before it was published."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from parallel.errors import UnsupportedModel

Shape = tuple[int, ...]
Layout = Literal["awq", "gptq", "packed", "int8", "float8", "blocks"]
# How the ops compute: codes times scales, or products of integers, with inputs rounded to int8.
Kind = Literal["int4", "int8", "fp8", "w8a8"]

FLOATS = ("F32", "F16", "BF16")  # by safetensors' names
WORD_BITS = 32  # of the integers that hold several codes
BLOCK = 128  # outputs and inputs that share a scale in `blocks`
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOGETHER = (LINEARS[:3], LINEARS[4:6])  # that are multiplied as one
WEIGHT, LAYERS = ".weight", "model.layers."


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as a checkpoint must hold it."""

    shape: Shape
    dtypes: tuple[str, ...] = FLOATS  # any of these, by safetensors' names
    others: tuple[Shape, ...] = ()  # shapes that are as good


@dataclass(frozen=True, slots=True)
class Scheme:
    """What config.json's quantization_config says."""

    method: str  # as it names itself
    layout: Layout
    kind: Kind
    bits: int
    group_size: int | None  # inputs that share a scale; None: all of a row
    has_zeros: bool = False  # zero points are stored; without, the middle code is zero
    has_order: bool = False  # each input's group is stored (act-order)
    zero_offset: int = 0  # of stored zero points, to be added
    shuffles: bool = False  # neighbouring inputs need not be in one group
    input_scale: bool = False  # inputs have one scale, which is stored; else one is computed for each row
    ignored: tuple[re.Pattern[str], ...] = ()  # names of linears that are stored as they are

    @property
    def name(self) -> str:
        """For people: the method, and how wide numbers are."""
        widths = {"int4": "4-bit", "int8": "8-bit", "fp8": "float8", "w8a8": "8-bit (inputs too)"}
        return f"{self.method} {widths[self.kind]}"

    def is_quantized(self, linear: str) -> bool:
        """Whether the linear of this name is; of a model's other weights none is."""
        if not linear.startswith(LAYERS) or linear.rsplit(".", 1)[-1] not in LINEARS:
            return False
        return not any(pattern.search(linear) for pattern in self.ignored)

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Raise UnsupportedModel unless linears that are multiplied as one are quantized alike."""
        for first, *others in TOGETHER:
            for name in shapes:
                if not name.endswith(f".{first}{WEIGHT}"):
                    continue
                stem, linear = name.removesuffix(first + WEIGHT), name.removesuffix(WEIGHT)
                for other in others:
                    if self.is_quantized(stem + other) != self.is_quantized(linear):
                        raise UnsupportedModel(
                            f"config.json: by quantization_config only one of {linear} and {other} is quantized, which "
                            "are multiplied as one; both or neither would work"
                        )

    def forms(self, shapes: Mapping[str, Shape]) -> dict[str, Form]:
        """Every tensor of the checkpoint, of a model with tensors of these shapes."""
        forms: dict[str, Form] = {}
        for name, shape in shapes.items():
            linear = name.removesuffix(WEIGHT)
            if name.endswith(WEIGHT) and self.is_quantized(linear):
                forms |= {f"{linear}.{part}": form for part, form in self._parts(*shape).items()}
            else:
                forms[name] = Form(shape)
        return forms

    def unused(self, shapes: Mapping[str, Shape]) -> frozenset[str]:
        """Tensors that may also be there."""
        extra: tuple[str, ...] = ()
        if self.layout == "gptq":
            extra = ("bias",)  # some packers add zeros, which are checked to be zeros
        elif self.layout in ("packed", "int8", "float8", "blocks"):
            extra = ("weight_shape", "input_scale")
        linears = [name.removesuffix(WEIGHT) for name in shapes if name.endswith(WEIGHT)]
        names = {f"{linear}.{part}" for linear in linears if self.is_quantized(linear) for part in extra}
        return frozenset(names - self.forms(shapes).keys())

    def num_groups(self, num_in: int) -> int:
        """Scales of a row of num_in inputs."""
        return 1 if self.group_size is None else math.ceil(num_in / self.group_size)

    def _parts(self, num_out: int, num_in: int) -> dict[str, Form]:
        """By the ends of their names, those of a linear's weight [num_out, num_in]."""
        groups, packed = self.num_groups(num_in), WORD_BITS // self.bits
        words = Form((math.ceil(num_in / packed), num_out), ("I32",))
        match self.layout:
            case "awq":
                num_words = math.ceil(num_out / packed)
                return {
                    "qweight": Form((num_in, num_words), ("I32",)),
                    "scales": Form((groups, num_out)),
                    "qzeros": Form((groups, num_words), ("I32",)),
                }
            case "gptq":
                parts = {
                    "qweight": words,
                    "scales": Form((groups, num_out)),
                    "qzeros": Form((groups, math.ceil(num_out / packed)), ("I32",)),
                }
                return parts | ({"g_idx": Form((num_in,), ("I32",))} if self.has_order else {})
            case "packed":
                return self._packed_parts(num_out, words.shape[0], groups, num_in)
            case "blocks":
                blocks = Form((math.ceil(num_out / BLOCK), groups))
                scales = "weight_scale" if self.method == "compressed-tensors" else "weight_scale_inv"
                return {"weight": Form((num_out, num_in), ("F8_E4M3",)), scales: blocks}
            case _:
                scales_form = Form((num_out, groups), others=((1,), (), (1, 1), (num_out,)) if groups == 1 else ())
                parts = {"weight": Form((num_out, num_in), ("I8",) if self.layout == "int8" else ("F8_E4M3",))}
                parts["weight_scale"] = scales_form
                return parts | ({"input_scale": Form((1,), others=((),))} if self.input_scale else {})

    def _packed_parts(self, num_out: int, num_words: int, groups: int, num_in: int) -> dict[str, Form]:
        packed = WORD_BITS // self.bits
        parts = {"weight_packed": Form((num_out, num_words), ("I32",)), "weight_scale": Form((num_out, groups))}
        if self.has_zeros:
            parts["weight_zero_point"] = Form((math.ceil(num_out / packed), groups), ("I32",))
        if self.has_order:
            parts["weight_g_idx"] = Form((num_in,), ("I32",))
        return parts
