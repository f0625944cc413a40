"""How positions become angles: the kinds of rotary embedding that config.json may name."""

import math
from dataclasses import dataclass
from typing import Any

from parallel.errors import UnsupportedModel

DEFAULT_THETA = 10000.0

# The keys of each kind, beside its name and theta; False: optional.
KINDS: dict[str, dict[str, bool]] = {
    "default": {},
    "linear": {"factor": True},
    "llama3": {
        "factor": True,
        "low_freq_factor": True,
        "high_freq_factor": True,
        "original_max_position_embeddings": True,
    },
    "yarn": {
        "factor": True,
        "original_max_position_embeddings": False,
        "attention_factor": False,
        "beta_fast": False,
        "beta_slow": False,
        "mscale": False,
        "mscale_all_dim": False,
        "truncate": False,
    },
}

_ZERO_IS_DEFAULT = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # as in transformers
_LARGEST = 1e30  # not infinite, also where a float32 holds it


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions are turned into angles; `parameters` are those of KINDS[kind]."""

    kind: str
    theta: float
    parameters: dict[str, Any]
    max_positions: int  # the context


def read_rope(hf_config: dict[str, Any]) -> Rope:
    """From `rope_parameters`, or from the older `rope_theta` and `rope_scaling`; raises
    UnsupportedModel.

    `rope_scaling` beside other `rope_parameters` was added by hand, as model cards have it, to a
    file that has the newer form; programs differ in which of them they read.
    """
    fields = {name: hf_config.get(name) or {} for name in ("rope_parameters", "rope_scaling")}
    for name, value in fields.items():
        if not isinstance(value, dict):
            raise UnsupportedModel(f"config.json: {name}={value!r} is no object")
    new, old = fields.values()
    if not (new and old):
        return _read(new or old, hf_config.get("rope_theta"), hf_config)
    theirs = old.get("rope_theta") or hf_config.get("rope_theta")
    ours = new.get("rope_theta") or theirs
    ropes = [_read(given, theta, hf_config) for given, theta in ((new, ours), (old, theirs or ours))]
    if _meaning(ropes[0]) != _meaning(ropes[1]):
        raise UnsupportedModel(
            f"config.json: rope_parameters={new} and rope_scaling={old} differ, with rope_theta={ropes[0].theta:g} and "
            f"{ropes[1].theta:g}; write what is meant, with rope_theta, into rope_parameters, and remove rope_scaling"
        )
    return ropes[0]


def yarn_magnitude(parameters: dict[str, Any]) -> float:
    """What YaRN multiplies cosines and sines by."""
    if "attention_factor" in parameters:
        return float(parameters["attention_factor"])
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        numerator = _magnitude(parameters["factor"], parameters["mscale"])
        return numerator / _magnitude(parameters["factor"], parameters["mscale_all_dim"])
    return _magnitude(parameters["factor"], 1.0)


def _magnitude(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _read(given: dict[str, Any], theta: Any, hf_config: dict[str, Any]) -> Rope:
    """From one of the two forms; `theta` where it names none."""
    parameters = dict(given)
    own_theta = parameters.pop("rope_theta", None)
    theta = _number(
        "config.json: rope_theta", own_theta if own_theta is not None else DEFAULT_THETA if theta is None else theta
    )
    old_kind = parameters.pop("type", None)
    kind = parameters.pop("rope_type", None) or old_kind or "default"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedModel(f"rope type {kind!r} is not supported; there are {', '.join(KINDS)}")
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor is not supported; rotary embedding covers the whole head")
    parameters = {key: value for key, value in parameters.items() if value is not None}
    max_positions = hf_config["max_position_embeddings"]
    is_given = "original_max_position_embeddings" in parameters
    if "original_max_position_embeddings" in KINDS[kind]:
        parameters.setdefault("original_max_position_embeddings", max_positions)
    _check(kind, parameters)
    if kind == "yarn" and is_given:
        # As in Qwen's model cards, which leave max_position_embeddings unchanged.
        max_positions = int(parameters["factor"] * parameters["original_max_position_embeddings"])
    return Rope(kind, theta, parameters, max_positions)


def _check(kind: str, parameters: dict[str, Any]) -> None:
    """Raises UnsupportedModel unless they are this kind's."""
    for key in parameters:
        if key not in KINDS[kind]:
            raise UnsupportedModel(f"rope type {kind!r} takes no {key!r}; it takes {', '.join(KINDS[kind]) or 'none'}")
    for key, is_required in KINDS[kind].items():
        if is_required and key not in parameters:
            raise UnsupportedModel(f"rope type {kind!r} needs {key!r}")
    for key, value in parameters.items():
        if key != "truncate":
            _number(f"rope type {kind!r}: {key}", value, may_be_zero=key in _ZERO_IS_DEFAULT)
        elif not isinstance(value, bool):
            raise UnsupportedModel(f"rope type {kind!r}: truncate={value!r} is neither true nor false")


def _number(what: str, value: Any, *, may_be_zero: bool = False) -> float:
    """Raises UnsupportedModel unless it is a positive one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 < value <= _LARGEST or (may_be_zero and value == 0)):
        raise UnsupportedModel(f"{what}={value!r} is no positive number")
    return float(value)


def _meaning(rope: Rope) -> tuple[Any, ...]:
    """All that angles depend on, with the defaults of what is absent."""
    if rope.kind != "yarn":
        return rope.kind, rope.theta, rope.parameters
    given = rope.parameters
    lengths = given["factor"], given["original_max_position_embeddings"]
    turns = given.get("beta_fast") or 32, given.get("beta_slow") or 1, given.get("truncate", True)
    return rope.kind, rope.theta, *lengths, *turns, yarn_magnitude(given)
