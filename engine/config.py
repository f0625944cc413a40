"""The configuration: read once, frozen; unknown keys are rejected, naming the nearest known one."""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import InvalidConfig
from engine.model_folder import check_model_folder
from engine.sizes import Size

DEFAULT_CPU_CACHE_BYTES = 1 << 30  # of all ranks together, so that every sharding holds as many tokens


class EngineConfig(BaseModel):
    """Everything an engine is started with; names and defaults are those of the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str  # a folder in Hugging Face layout
    served_model_name: str | None = None  # None: the folder's name
    tokenizer: str | None = None  # None: the model's folder
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["int8", "int4", "fp8"] | None = (
        None  # of matrices, when they are loaded; activations stay in dtype, but fp8 also rounds inputs
    )
    load_format: Literal["auto", "dummy"] = "auto"  # dummy: random weights, for performance work
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ops_backend: Literal["auto", "reference", "cpu", "triton"] = "auto"
    exact: bool = True  # false: use cuBLAS on GPUs, whose last bits depend on the other rows
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = "auto"  # auto: the model's; fp8 halves the cache, on GPUs only
    enforce_eager: bool = False  # true: no CUDA graphs (on the CPU: no tapes) for decode steps
    seed: int = 0  # of dummy weights and of the seeds drawn for requests without one
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    num_threads: int | None = Field(None, ge=1)  # of each rank on CPU; None: the node's cores divided among its ranks
    distributed_executor_backend: Literal["auto", "local", "ray"] = "auto"  # auto: local for one rank, else ray
    max_model_len: Size | None = Field(None, ge=1)  # None: the model's; the cache must hold a sequence of that length
    block_size: Literal[16] = 16  # tokens; the kernels are written for it
    gpu_memory_utilization: float = Field(0.92, gt=0, le=1)
    kv_cache_memory_bytes: Size | None = Field(
        None, ge=1
    )  # per rank; None: profiled on GPU, `default_cpu_blocks` on CPU
    num_gpu_blocks_override: int | None = Field(None, ge=2)
    swap_space: float = Field(0.25, ge=0)  # GiB of host memory per rank
    enable_prefix_caching: bool = True
    max_num_batched_tokens: Size = Field(2048, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    long_prefill_token_threshold: Size = Field(0, ge=0)  # 0: no limit
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: float = Field(0.01, ge=0, lt=1)  # share of blocks kept free when a new request is admitted
    max_num_queued_reqs: int | None = Field(None, ge=0)  # None: max_num_seqs; 0: no limit
    max_num_queued_tokens: Size | None = Field(None, ge=0)  # of their prompts; None: the cache's; 0: no limit
    max_restarts: int = Field(3, ge=0)  # consecutive failed restarts of workers before the engine gives up
    num_spare_workers: int = Field(1, ge=0)  # idle processes per node, 0.2 GB each, ready to replace a lost CPU worker
    elastic: bool = False  # continue with fewer tensor-parallel ranks if a lost node is not replaced
    log_stats: bool = True

    @classmethod
    def create(cls, also_known: Iterable[str] = (), **arguments: Any) -> Self:
        """An `EngineConfig`; raises `InvalidConfig` with one sentence. `also_known`: further keys
        that a misspelt one may have meant.
        """
        try:
            config = cls(**arguments)
        except ValidationError as error:
            raise InvalidConfig(explain(error, [*cls.model_fields, *also_known])) from None
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is below max_num_seqs={config.max_num_seqs}: "
                "a step could not give each running sequence a token"
            )
        return config

    @property
    def min_stage_tokens(self) -> int:
        """Tokens that a pipeline stage computes in about the time it takes to read its weights:
        fewer would not be faster.
        """
        return 32 if self.device == "cpu" else 256

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def runs_in_process(self) -> bool:
        """In the process that drives it, without Ray actors."""
        backend = self.distributed_executor_backend
        return backend == "local" or (backend == "auto" and self.world_size == 1)

    @property
    def model_name(self) -> str:
        return self.served_model_name or Path(self.model).resolve().name


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

    @classmethod
    def load(cls, folder: str) -> Self:
        """Read config.json and generation_config.json; raises InvalidConfig naming the file and the
        field.
        """
        check_model_folder(folder)
        hf_config = _read_json(Path(folder) / "config.json")
        generation_path = Path(folder) / "generation_config.json"
        generation = _read_json(generation_path) if generation_path.exists() else {}
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
                eos_token_ids=_ids(generation.get("eos_token_id", hf_config.get("eos_token_id"))),
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


_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


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


def default_cpu_blocks(config: EngineConfig, max_model_len: int, block_bytes: int) -> int:
    """Blocks of a rank's cache on CPU: those of its share of 1 GiB, and enough for one sequence of
    the longest length.
    """
    longest = -(-max_model_len // config.block_size) + 1  # the null block
    return max(DEFAULT_CPU_CACHE_BYTES // config.world_size // block_bytes, longest)


def explain(error: ValidationError, known: list[str], secrets: tuple[str, ...] = ("api_key",)) -> str:
    """A pydantic error in a sentence: path, value, and the nearest known key for an unknown one.
    Values whose path begins with one of `secrets` are not shown.
    """
    # A misspelt key first: it may be why another one is missing.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {path!r}{hint}"
    if first["type"] == "missing":
        return f"{path} is required"
    message = first["msg"].removeprefix("Value error, ")
    if path.startswith(secrets) or not path:
        return f"{path}: {message}".removeprefix(": ")
    return f"{path}={first['input']!r}: {message}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfig(f"{path} does not exist; a model is a folder in Hugging Face layout") from None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidConfig(f"{path} holds {type(value).__name__}, not an object")
    return value


def _quotient(numerator: Any, divisor: Any) -> Any:
    """If these cannot be divided, a value that validation will reject."""
    return numerator // divisor if isinstance(numerator, int) and isinstance(divisor, int) and divisor else divisor


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
