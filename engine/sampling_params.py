"""How a request's tokens are chosen, and when it stops. Names, defaults and ranges are the
field's.
"""

import json
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, get_args

from engine.errors import InvalidRequest
from engine.structured_outputs import StructuredOutputs, structured_outputs

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 1024  # each is tokenized between two steps
MAX_BAD_WORD = 256  # characters
MAX_LOGPROBS = 20
MAX_TOP_K = 2**31 - 1
MIN_TEMPERATURE = 1e-5  # below it, and above 0, logits divided by it leave float32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


Kind = TypeVar("Kind", bound=type)


def quick_state(kind: Kind) -> Kind:
    """A frozen dataclass with slots and at least two fields, whose instances are copied and pickled
    in half of the time: Python's own functions look for the fields' names each time. What is
    pickled is the same.
    """
    names = [field.name for field in fields(kind)]
    assert len(names) > 1, kind  # of one name, `attrgetter` makes no tuple
    values_of: Any = attrgetter(*names)
    setters = [getattr(kind, name).__set__ for name in names]  # a frozen instance refuses `setattr`

    def state(self: Any) -> list[Any]:
        return list(values_of(self))

    def restore(self: Any, values: Sequence[Any]) -> None:
        for put, value in zip(setters, values, strict=False):
            put(self, value)

    for name, function in (("__getstate__", state), ("__setstate__", restore)):
        setattr(kind, name, function)
    return kind


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number: finite, from `low` (above it, if it is not `closed`) to `high`."""

    kind: type[int] | type[float]
    low: float
    high: float
    closed: bool = True


def integer(default: int | None, low: int, high: int) -> Any:
    """A field that must be in this range, or None if its type allows it."""
    return field(default=default, metadata={"range": Range(int, low, high)})


def number(default: float | None, low: float, high: float, *, closed: bool = True) -> Any:
    """As `integer`."""
    return field(default=default, metadata={"range": Range(float, low, high, closed)})


@quick_state
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Validated on construction: a wrong field raises `InvalidRequest` naming the value and the
    limit.

    The order in which the sampler applies them is in `engine/worker/head/sampler.py`.
    """

    n: int = integer(1, 1, MAX_CHOICES)
    best_of: int | None = None  # samples drawn, of which the n with the highest mean logprob are returned
    temperature: float = number(1.0, 0.0, 2.0)  # 0 = greedy
    top_k: int = integer(0, 0, MAX_TOP_K)  # 0 or -1 = all
    top_p: float = number(1.0, 0.0, 1.0, closed=False)
    min_p: float = number(0.0, 0.0, 1.0)
    presence_penalty: float = number(0.0, -2.0, 2.0)
    frequency_penalty: float = number(0.0, -2.0, 2.0)
    repetition_penalty: float = number(1.0, 0.01, 100.0)
    seed: int | None = integer(None, INT64_MIN, INT64_MAX)  # None: the engine draws one
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    structured_outputs: StructuredOutputs | None = None  # or a mapping: {"json": schema}, {"regex": expression}, ...
    ignore_eos: bool = False
    max_tokens: int | None = integer(16, 1, INT64_MAX)  # None: the rest of the context
    min_tokens: int = 0
    thinking_token_budget: int | None = integer(None, 0, INT64_MAX)  # tokens of reasoning; None or -1: no limit
    logprobs: int | None = integer(None, 0, MAX_LOGPROBS)  # of the most likely tokens beside the sampled one
    prompt_logprobs: int | None = integer(None, 0, MAX_LOGPROBS)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    beam_width: int | None = None  # not None: beam search
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        asked: Any = self.structured_outputs  # anything that the caller has passed
        if asked is not None and not isinstance(asked, StructuredOutputs):
            object.__setattr__(self, "structured_outputs", structured_outputs(asked))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.thinking_token_budget == -1:
            object.__setattr__(self, "thinking_token_budget", None)
        for name, allowed, default in _CHECKED:  # for every request, of which few have more than a few
            value = getattr(self, name)
            if value is not default and (value is not None or name not in _OPTIONAL):
                _check(name, value, allowed)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature={self.temperature} is below {MIN_TEMPERATURE}; use 0 for the most likely token",
                param="temperature",
                code="decimal_below_min_value",
            )
        _check("min_tokens", self.min_tokens, Range(int, 0, INT64_MAX if self.max_tokens is None else self.max_tokens))
        self._check_stops()
        self._check_token_sets()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "early_stopping"):
            if not isinstance(getattr(self, name), bool):
                message = f"{name} must be True or False, got {getattr(self, name)!r}"
                raise InvalidRequest(message, param=name, code="invalid_type")
        if self.best_of is not None:
            _check("best_of", self.best_of, Range(int, self.n, MAX_CHOICES))
        if self.beam_width is not None:
            self._check_beams()

    def with_seed(self, seed: int) -> "SamplingParams":
        """These parameters with a seed of 64 bits; `replace` would check all of them once more."""
        made = copy(self)
        object.__setattr__(made, "seed", seed)
        return made

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def history_matters(self) -> bool:
        """Whether what is computed next depends on the driver's knowing the tokens before."""
        return self.beam_width is not None

    @property
    def num_samples(self) -> int:
        """How many sequences the request has."""
        return self.beam_width or self.best_of or self.n

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS} are taken",
                param="stop",
                code="array_above_max_length",
            )
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidRequest(
                f"bad_words has {len(self.bad_words)} strings, at most {MAX_BAD_WORDS} are taken",
                param="bad_words",
                code="array_above_max_length",
            )
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not isinstance(text, str):
                    raise InvalidRequest(f"{name} takes strings, got {text!r}", param=name, code="invalid_type")
                if not text:
                    raise InvalidRequest(f"{name} holds an empty string", param=name, code="empty_string")
                if name == "bad_words" and len(text) > MAX_BAD_WORD:
                    raise InvalidRequest(
                        f"bad_words holds a string of {len(text)} characters, at most {MAX_BAD_WORD} are taken",
                        param=name,
                        code="string_above_max_length",
                    )

    def _check_token_sets(self) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                _check(name, token_id, TOKEN_ID)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty: no token could be sampled", param="allowed_token_ids")
        biases: Any = self.logit_bias or {}  # anything that the caller has passed
        if not isinstance(biases, Mapping):
            raise InvalidRequest(f"logit_bias takes a mapping, got {biases!r}", param="logit_bias", code="invalid_type")
        for token_id, bias in biases.items():
            _check("logit_bias", token_id, TOKEN_ID)
            _check("logit_bias", bias, Range(float, -100.0, 100.0))

    def _check_beams(self) -> None:
        assert self.beam_width is not None
        _check("beam_width", self.beam_width, Range(int, 1, MAX_CHOICES))
        _check("length_penalty", self.length_penalty, Range(float, -10.0, 10.0))
        if self.n > self.beam_width:
            raise InvalidRequest(f"n={self.n} exceeds beam_width={self.beam_width}", param="n")
        if self.temperature not in (0.0, 1.0):
            raise InvalidRequest(
                f"temperature={self.temperature} cannot be combined with beam search", param="temperature"
            )
        if self.structured_outputs is not None:
            param = self.structured_outputs.param
            raise InvalidRequest(f"{param} cannot be combined with beam search", param=param)
        plain = SamplingParams()
        for name in [part.name for part in fields(self) if part.name not in WITH_BEAMS]:
            if getattr(self, name) != getattr(plain, name):
                value = json.dumps(getattr(self, name))
                raise InvalidRequest(f"{name}={value} cannot be combined with beam search", param=name)


RANGES: dict[str, Range] = {
    part.name: part.metadata["range"] for part in fields(SamplingParams) if "range" in part.metadata
}
_CHECKED = [(part.name, RANGES[part.name], part.default) for part in fields(SamplingParams) if part.name in RANGES]
_OPTIONAL = {part.name for part in fields(SamplingParams) if NoneType in get_args(part.type)}
TOKEN_ID = Range(int, 0, 2**31 - 1)
# The fields that beam search supports: no other may be set with it.
WITH_BEAMS = (
    *("beam_width", "length_penalty", "early_stopping", "n", "temperature", "max_tokens", "prompt_logprobs"),
    *("stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output"),
)


def _as_tuple(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if value is None:
        return None if name == "allowed_token_ids" else ()
    try:
        return tuple(value)
    except TypeError:
        raise InvalidRequest(f"{name} takes a list, got {value!r}", param=name, code="invalid_type") from None


def _check(name: str, value: Any, allowed: Range) -> None:
    if isinstance(value, bool) or not isinstance(value, int if allowed.kind is int else int | float):
        kind = "an integer" if allowed.kind is int else "a number"
        raise InvalidRequest(f"{name} must be {kind}, got {value!r}", param=name, code="invalid_type")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{name} must be finite, got {value!r}", param=name, code="invalid_value")
    code = "integer" if allowed.kind is int else "decimal"
    if value < allowed.low or (value == allowed.low and not allowed.closed):
        message = f"{name} must be {'at least' if allowed.closed else 'above'} {allowed.low}, got {value}"
        raise InvalidRequest(message, param=name, code=f"{code}_below_min_value")
    if value > allowed.high:
        message = f"{name} must be at most {allowed.high}, got {value}"
        raise InvalidRequest(message, param=name, code=f"{code}_above_max_value")
