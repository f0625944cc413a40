"""How a request wants its tokens chosen, and when to stop. Names, defaults and ranges are the
field's.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 1024  # each is tokenized between two steps
MAX_BAD_WORD = 256  # characters
MAX_LOGPROBS = 20
MIN_TEMPERATURE = 1e-5  # below it, and above 0, logits divided by it leave float32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Validated where it is made: a wrong field raises `InvalidRequest` naming the value and the
    limit.

    The order in which the sampler applies these is written where it is done,
    `engine/worker/sampler.py`.
    """

    n: int = 1
    best_of: int | None = None  # samples drawn, of which the n with the highest mean logprob are returned
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 or -1 = all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: the engine draws one
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: the rest of the context
    min_tokens: int = 0
    logprobs: int | None = None  # how many of the most likely tokens beside the sampled one
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    beam_width: int | None = None  # not None: beam search, which takes no other sampling field
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        _integer("n", self.n, 1, MAX_CHOICES)
        _number("temperature", self.temperature, 0.0, 2.0)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature={self.temperature} is below {MIN_TEMPERATURE}; use 0 for the most likely token",
                param="temperature",
                code="decimal_below_min_value",
            )
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _integer("seed", self.seed, INT64_MIN, INT64_MAX)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, INT64_MAX)
        _integer("min_tokens", self.min_tokens, 0, INT64_MAX if self.max_tokens is None else self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        self._check_stops()
        self._check_token_sets()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "early_stopping"):
            if not isinstance(getattr(self, name), bool):
                message = f"{name} must be True or False, got {getattr(self, name)!r}"
                raise InvalidRequest(message, param=name, code="invalid_type")
        if self.best_of is not None:
            _integer("best_of", self.best_of, self.n, MAX_CHOICES)
        if self.beam_width is not None:
            self._check_beams()

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

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
                _integer(name, token_id, 0, 2**31 - 1)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty: no token could be sampled", param="allowed_token_ids")
        biases: Any = self.logit_bias or {}  # whatever the caller has passed
        if not isinstance(biases, Mapping):
            raise InvalidRequest(f"logit_bias takes a mapping, got {biases!r}", param="logit_bias", code="invalid_type")
        for token_id, bias in biases.items():
            _integer("logit_bias", token_id, 0, 2**31 - 1)
            _number("logit_bias", bias, -100.0, 100.0)

    def _check_beams(self) -> None:
        assert self.beam_width is not None
        _integer("beam_width", self.beam_width, 1, MAX_CHOICES)
        _number("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.n > self.beam_width:
            raise InvalidRequest(f"n={self.n} exceeds beam_width={self.beam_width}", param="n")
        if self.temperature not in (0.0, 1.0):
            raise InvalidRequest(
                f"temperature={self.temperature} cannot be combined with beam search", param="temperature"
            )
        plain = SamplingParams()
        for name in BEAM_EXCLUDES:
            if getattr(self, name) != getattr(plain, name):
                value = json.dumps(getattr(self, name))
                raise InvalidRequest(f"{name}={value} cannot be combined with beam search", param=name)


BEAM_EXCLUDES = (
    "best_of",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "min_tokens",
    "logprobs",
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


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, got {value!r}", param=name, code="invalid_type")
    _bounds(name, value, low, high, "integer", above=False)


def _number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, got {value!r}", param=name, code="invalid_type")
    if math.isnan(value) or math.isinf(value):
        raise InvalidRequest(f"{name} must be finite, got {value!r}", param=name, code="invalid_value")
    _bounds(name, value, low, high, "decimal", above=above)


def _bounds(name: str, value: float, low: float, high: float, kind: str, *, above: bool) -> None:
    if value < low or (above and value == low):
        word = "above" if above else "at least"
        raise InvalidRequest(f"{name} must be {word} {low}, got {value}", param=name, code=f"{kind}_below_min_value")
    if value > high:
        raise InvalidRequest(f"{name} must be at most {high}, got {value}", param=name, code=f"{kind}_above_max_value")
