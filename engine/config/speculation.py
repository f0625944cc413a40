"""Guesses of tokens that steps check: `speculative_config`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.errors import InvalidConfig

DRAFT_MODEL_TOKENS = 4  # that it guesses at once, at most, unless it is told
OF_DRAFT = ("model", "source", "revision", "quantization")  # keys of `SpeculativeConfig`


class SpeculativeConfig(BaseModel):
    """Guesses of tokens that steps check beside the next one; answers are the same without."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["ngram", "draft_model"] = "ngram"  # what followed where the newest tokens occurred; or `model`
    model: str | None = None  # a smaller one with the same tokenizer: a folder or a name, as that of the engine
    source: str | None = None  # as that of the engine
    revision: str | None = None  # likewise
    quantization: Literal["int8", "int4", "fp8"] | None = None  # of the draft model's matrices
    num_speculative_tokens: int = Field(8, ge=1, le=31)  # guessed at once, at most; 4 by a draft model
    prompt_lookup_max: int = Field(8, ge=1, le=32)  # newest tokens that are looked up
    prompt_lookup_min: int = Field(2, ge=1, le=32)  # fewer in common are a coincidence

    @model_validator(mode="before")
    @classmethod
    def _by_method(cls, values: Any) -> Any:
        """What a model's presence says of the method, and the method of the defaults."""
        if isinstance(values, dict) and values.get("model") is not None:
            values = {"method": "draft_model"} | values
            values = {"num_speculative_tokens": DRAFT_MODEL_TOKENS} | values
        return values

    def check(self) -> None:
        """Raises InvalidConfig for keys that contradict each other."""
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InvalidConfig(
                f"speculative_config.prompt_lookup_min={self.prompt_lookup_min} is above "
                f"prompt_lookup_max={self.prompt_lookup_max}"
            )
        if self.method == "draft_model" and self.model is None:
            raise InvalidConfig("speculative_config.method=draft_model needs speculative_config.model")
        others = OF_DRAFT if self.method == "ngram" else ("prompt_lookup_max", "prompt_lookup_min")
        for name in others:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise InvalidConfig(f"speculative_config.{name}={value} is of no use with method={self.method}")
