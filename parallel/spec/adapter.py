"""A low-rank adapter in PEFT's layout, before it is read: what its configuration says, and which of
the model's linears its tensors are for.

The files are adapter_config.json and adapter_model.safetensors, as peft's `save_pretrained` writes
them. What an adapter asks for beyond low-rank products is refused by name.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallel.errors import InvalidAdapter
from parallel.spec.decoder import DecoderConfig, Shapes

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 256

PREFIX = "base_model.model."
_TENSOR = re.compile(rf"{re.escape(PREFIX)}(?:model\.)?(.+)\.lora_([AB])\.weight")
# Of adapter_config.json: what has no influence on the products of an adapter that was saved.
_WITHOUT_INFLUENCE = frozenset(
    "auto_mapping base_model_name_or_path corda_config ensure_weight_tying ephemeral_gpu_offload eva_config "
    "exclude_modules inference_mode layers_pattern layers_to_transform lora_dropout lora_ga_config loftq_config "
    "megatron_config megatron_core peft_version qalora_group_size revision runtime_config task_type".split()
)
_READ = frozenset(
    "alpha_pattern bias init_lora_weights lora_alpha peft_type r rank_pattern target_modules use_rslora".split()
)
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules beside the adapter",
    "fan_in_fan_out": "transposed weights",
    "lora_bias": "biases of the adapter",
}
# They change the base model's weights, of which a folder that was saved with them says nothing.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json says."""

    rank: int
    alpha: float
    is_rank_stabilized: bool  # the scale is alpha / sqrt(rank), not alpha / rank
    ranks: Mapping[str, int]  # of modules whose names end like that, in place of `rank`
    alphas: Mapping[str, float]  # likewise
    base: str  # the model's name where it was trained; empty if it is not told
    targets: tuple[str, ...]  # ends of the names of modules that all have one; empty if that is not told

    @classmethod
    def parse(cls, text: bytes, where: str) -> "AdapterConfig":
        """`where` names the file in errors. Raises InvalidAdapter."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidAdapter(f"{where} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InvalidAdapter(f"{where} holds {type(values).__name__}, not an object")
        _check_kind(values, where)
        alpha, targets = values.get("lora_alpha", 8), values.get("target_modules") or ()
        if values.get("exclude_modules"):
            targets = ()  # some of them may have been left out
        return cls(
            rank=_rank(values.get("r", 8), f"{where}: r"),
            alpha=_alpha(alpha, f"{where}: lora_alpha"),
            is_rank_stabilized=values.get("use_rslora") is True,
            ranks={name: _rank(value, f"{where}: rank_pattern") for name, value in _patterns(values, "rank", where)},
            alphas={
                name: _alpha(value, f"{where}: alpha_pattern") for name, value in _patterns(values, "alpha", where)
            },
            base=base if isinstance(base := values.get("base_model_name_or_path"), str) else "",
            targets=tuple(str(name) for name in targets) if isinstance(targets, list) else (),
        )

    def rank_of(self, module: str) -> int:
        return int(_of_module(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return _of_module(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.is_rank_stabilized else rank)


@dataclass(frozen=True, slots=True)
class Pair:
    """The adapter of one linear: W becomes W + scale * up @ down."""

    down: str  # a tensor's name in the file, [rank, in]
    up: str  # [out, rank]
    scale: float


def pairs(config: AdapterConfig, shapes: Mapping[str, tuple[int, ...]], model: DecoderConfig) -> dict[str, Pair]:
    """By the names of the model's linears, of the tensors in a file. Raises InvalidAdapter naming
    what is missing, unknown or of another shape, or cannot be computed.
    """
    weights = model.shapes()
    found: dict[str, dict[str, str]] = {}
    for name in shapes:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise InvalidAdapter(f"tensor {name} is no low-rank factor of a linear, and nothing else is computed")
        halves = found.setdefault("model." + match[1], {})
        if match[2] in halves:
            raise InvalidAdapter(f"{halves[match[2]]} and {name} are the same factor by two names")
        halves[match[2]] = name
    for target in config.targets:
        if not any(f".{name}".endswith("." + target) for name in found):
            raise InvalidAdapter(f"target_modules names {target}, of which there is no tensor")
    if not found:
        raise InvalidAdapter("there are no tensors")
    return {name: _pair(name, tensors, config, shapes, weights) for name, tensors in found.items()}


def digest(config: bytes, weights: bytes) -> str:
    """What tells adapters apart: of both files' bytes, in hexadecimal."""
    return hashlib.sha256(hashlib.sha256(config).digest() + hashlib.sha256(weights).digest()).hexdigest()


def _pair(
    name: str, tensors: Mapping[str, str], config: AdapterConfig, shapes: Mapping[str, tuple[int, ...]], weights: Shapes
) -> Pair:
    _check_linear(name, weights)
    if len(tensors) < 2:
        missing = "lora_B" if "A" in tensors else "lora_A"
        raise InvalidAdapter(f"{name} has no {missing}")
    num_out, num_in = weights[f"{name}.weight"]
    own = tensors["A"].removeprefix(PREFIX).removesuffix(".lora_A.weight")  # as it was called where it was trained
    rank = config.rank_of(own)
    for half, shape in (("A", (rank, num_in)), ("B", (num_out, rank))):
        if tuple(shapes[tensors[half]]) != shape:
            found = list(shapes[tensors[half]])
            fits = len(found) == 2 and found[half == "B"] == rank
            whose = _other_model(config) if fits else ""
            raise InvalidAdapter(f"{tensors[half]} has shape {found}, not {list(shape)}{whose}")
    return Pair(tensors["A"], tensors["B"], config.scale_of(own))


def _other_model(config: AdapterConfig) -> str:
    """What to say where a tensor fits another model's linear."""
    base = f": {CONFIG_FILE} has base_model_name_or_path={config.base!r}" if config.base else ""
    return f"; it is probably an adapter of another model{base}"


def _check_linear(name: str, weights: Shapes) -> None:
    last = name.rpartition(".")[2]
    if ".mlp.experts." in name or ".mlp.shared_expert." in name:
        raise InvalidAdapter(f"{name} is of an expert; adapters of experts are not computed")
    if last in ("embed_tokens", "lm_head"):
        raise InvalidAdapter(f"{last} has an adapter; those of embeddings and of the head are not computed")
    if not last.endswith("_proj") or f"{name}.weight" not in weights:
        raise InvalidAdapter(f"the model has no linear {name} that can have an adapter")


def _check_kind(values: Mapping[str, Any], where: str) -> None:
    """Raise InvalidAdapter for what is not computed."""
    if values.get("peft_type") != "LORA":
        raise InvalidAdapter(f"{where}: peft_type is {values.get('peft_type')!r}; only LORA is computed")
    for name, what in _REFUSED.items():
        if values.get(name):
            raise InvalidAdapter(f"{where}: {name}={values[name]!r} asks for {what}, which is not computed")
    if (bias := values.get("bias", "none")) != "none":
        raise InvalidAdapter(f"{where}: bias={bias!r} changes the model's biases, which is not computed; none would do")
    start = values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise InvalidAdapter(
            f"{where}: init_lora_weights={start!r} means that the base model was changed too; save the adapter with "
            "path_initial_model_for_weight_conversion, which makes it one of the unchanged model"
        )
    if not isinstance(values.get("use_rslora") or False, bool):
        raise InvalidAdapter(f"{where}: use_rslora={values['use_rslora']!r} is neither true nor false")
    for name in sorted(values.keys() - _WITHOUT_INFLUENCE - _READ - _REFUSED.keys()):
        if values[name]:
            raise InvalidAdapter(f"{where}: {name}={values[name]!r} is not known here, and not computed")


def _rank(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise InvalidAdapter(f"{where}={value!r}: ranks are whole numbers from 1 to {MAX_RANK}")
    return value


def _alpha(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        alpha = float(value) if is_number else math.nan
    except OverflowError:
        alpha = math.inf
    if not math.isfinite(alpha):
        raise InvalidAdapter(f"{where}={value!r} is no number")
    return alpha


def _patterns(values: Mapping[str, Any], kind: str, where: str) -> list[tuple[str, Any]]:
    """Of rank_pattern or alpha_pattern. PEFT takes regular expressions there; here, names or ends
    of names.
    """
    patterns = values.get(f"{kind}_pattern") or {}
    if not isinstance(patterns, dict):
        raise InvalidAdapter(f"{where}: {kind}_pattern holds {type(patterns).__name__}, not an object")
    for pattern in patterns:
        if not re.fullmatch(r"\^?[\w.]+", pattern):
            raise InvalidAdapter(f"{where}: {kind}_pattern has {pattern!r}, which is no name of a module")
    return list(patterns.items())


def _of_module(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """The first that the module's name ends with; one that begins with ^ is the whole name. By
    PEFT's expression, in which a dot is any character.
    """
    return next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module)), otherwise)
