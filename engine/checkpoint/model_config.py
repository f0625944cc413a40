"""What the driver reads of a checkpoint's config.json and generation_config.json."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.checkpoint.headless import with_a_head
from engine.checkpoint.json_file import read_json
from engine.checkpoint.model_folder import check_model_folder
from engine.config import EngineConfig, explain
from engine.errors import InvalidConfig, InvalidRequest
from engine.sampling_params import SamplingParams

_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class ModelConfig(BaseModel):
    """What the driver needs from a checkpoint's config.json; the layers read `hf_config`
    themselves.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    architecture: str
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)  # width of the logits
    max_position_embeddings: int = Field(gt=0)
    torch_dtype: Literal["float32", "bfloat16", "float16"]
    eos_token_ids: tuple[int, ...]
    default_sampling: dict[str, Any]  # generation_config.json's temperature, top_k, top_p, ... where given
    hf_config: dict[str, Any]

    @property
    def max_positions(self) -> int:
        """The context that the model is made for, as `parallel.spec.rope` reads it: YaRN extends
        the original one.

        Qwen's model cards have YaRN added to config.json, and max_position_embeddings left as it
        was.
        """
        rope = self.hf_config.get("rope_parameters") or self.hf_config.get("rope_scaling") or {}
        if (rope.get("rope_type") or rope.get("type")) != "yarn" or not rope.get("original_max_position_embeddings"):
            return self.max_position_embeddings
        return int(rope["factor"] * rope["original_max_position_embeddings"])

    def sampling_defaults(self, config: EngineConfig) -> dict[str, Any]:
        """What requests get for sampling parameters that they leave out. Raises InvalidConfig."""
        if config.generation_config != "auto":
            return {}
        try:
            SamplingParams(**self.default_sampling)
        except InvalidRequest as error:
            raise InvalidConfig(
                f"{config.model}/generation_config.json: {error}; --generation-config vllm (generation_config: vllm) "
                "ignores these parameters"
            ) from None
        return self.default_sampling

    @classmethod
    def load(cls, folder: str) -> Self:
        """Read config.json and generation_config.json; raises InvalidConfig naming the file and the
        field.
        """
        check_model_folder(folder)
        hf_config = with_a_head(read_json(Path(folder) / "config.json"), Path(folder))
        generation_path = Path(folder) / "generation_config.json"
        generation = read_json(generation_path) if generation_path.exists() else {}
        architectures = hf_config.get("architectures")
        try:
            num_heads = hf_config["num_attention_heads"]
            model = cls(
                architecture=architectures[0] if isinstance(architectures, list) and architectures else "(none named)",
                hidden_size=hf_config["hidden_size"],
                num_hidden_layers=hf_config["num_hidden_layers"],
                num_attention_heads=num_heads,
                num_key_value_heads=hf_config.get("num_key_value_heads") or num_heads,
                head_dim=hf_config.get("head_dim") or _quotient(hf_config["hidden_size"], num_heads),
                vocab_size=hf_config["vocab_size"],
                max_position_embeddings=hf_config["max_position_embeddings"],
                torch_dtype=hf_config.get("dtype") or hf_config.get("torch_dtype") or "float32",
                eos_token_ids=_within(_end_tokens(folder, hf_config, generation), hf_config["vocab_size"]),
                default_sampling={key: generation[key] for key in _SAMPLING_KEYS if generation.get(key) is not None},
                hf_config=hf_config,
            )
        except KeyError as error:
            raise InvalidConfig(f"{folder}/config.json: {error.args[0]} is missing") from None
        except ValidationError as error:
            raise InvalidConfig(f"{folder}/config.json: {explain(error, [])}") from None
        if model.num_attention_heads % model.num_key_value_heads:
            raise InvalidConfig(
                f"{folder}/config.json: num_key_value_heads={model.num_key_value_heads} does not divide "
                f"num_attention_heads={model.num_attention_heads}"
            )
        return model


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The context length in tokens: as configured, within the model's own. It does not depend on
    available memory: every replica serves the same length, before and after a restart.
    """
    limit = model.max_positions
    if config.max_model_len is not None and config.max_model_len > limit:
        raise InvalidConfig(
            f"max_model_len={config.max_model_len} exceeds the model's {limit} positions; use {limit} or less"
        )
    return config.max_model_len or limit


def _quotient(numerator: Any, divisor: Any) -> Any:
    """If these cannot be divided, a value that validation will reject."""
    return numerator // divisor if isinstance(numerator, int) and isinstance(divisor, int) and divisor else divisor


def _end_tokens(folder: str, hf_config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    """Raises InvalidConfig naming the file."""
    name, fields = ("generation_config", generation) if "eos_token_id" in generation else ("config", hf_config)
    value = fields.get("eos_token_id")
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if any(type(each) is not int for each in ids):
        raise InvalidConfig(f"{folder}/{name}.json: eos_token_id={value!r} is no token's id, nor a list of such")
    return ids


def _within(token_ids: tuple[int, ...], vocab_size: Any) -> tuple[int, ...]:
    """Those that the model may give, as transformers has it: -1, or one behind the logits, ends
    nothing.
    """
    if not isinstance(vocab_size, int):
        return token_ids
    return tuple(each for each in token_ids if 0 <= each < vocab_size)
