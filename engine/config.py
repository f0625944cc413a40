"""The configuration: read once, frozen; unknown keys are rejected, naming the nearest known one."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import InvalidConfig
from engine.sizes import Size

DEFAULT_CPU_CACHE_BYTES = 1 << 30  # of all ranks together, so that every sharding holds as many tokens

HUB_SCHEME = "hf://"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class SpeculativeConfig(BaseModel):
    """Guesses of tokens that steps check beside the next one; answers are the same without."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["ngram"] = "ngram"  # what followed where the newest tokens occurred before
    num_speculative_tokens: int = Field(8, ge=1, le=31)  # guessed at once, at most
    prompt_lookup_max: int = Field(8, ge=1, le=32)  # newest tokens that are looked up
    prompt_lookup_min: int = Field(2, ge=1, le=32)  # fewer in common are a coincidence


class EngineConfig(BaseModel):
    """Everything an engine is started with; names and defaults are those of the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str  # a folder in Hugging Face layout; or a name, of the hub or an object store
    source: str | None = None  # what that name stood for when it was resolved, as NAME@REVISION; each node fetches it
    revision: str | None = None  # branch, tag or commit of a model of the hub; None: main
    download_dir: str | None = None  # where models are fetched to; None: the hub's cache, and that of the user
    served_model_name: str | None = None  # None: the folder's name, or the name as it was given
    tokenizer: str | None = None  # None: the model's folder
    generation_config: Literal["auto", "vllm"] = "auto"  # whose defaults requests have: the model's, or vLLM's own
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
    enable_lora: bool = False  # whether requests may have low-rank adapters
    max_loras: int = Field(8, ge=1)  # different adapters in one step
    max_lora_rank: int = Field(64, ge=1, le=256)
    max_cpu_loras: int | None = Field(None, ge=1)  # that a rank keeps ready; None: max_loras
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
    pooling_type: Literal["auto", "last", "mean"] = "auto"  # of embeddings; auto: as the model's modules.json says
    pooling_normalize: bool | None = None  # whether embeddings have length 1; None: likewise
    max_restarts: int = Field(3, ge=0)  # consecutive failed restarts of workers before the engine gives up
    num_spare_workers: int = Field(1, ge=0)  # idle processes per node, 0.2 GB each, ready to replace a lost CPU worker
    speculative_config: SpeculativeConfig | None = None  # None: each step computes one token of a sequence
    elastic: bool = False  # continue with fewer tensor-parallel ranks if a lost node is not replaced
    log_stats: bool = True

    @classmethod
    def create(cls, also_known: Iterable[str] = (), **arguments: Any) -> Self:
        """An `EngineConfig`; raises `InvalidConfig` with one sentence. `also_known`: further keys
        that a misspelt one may have meant.
        """
        try:
            config = cls(**arguments)
            config = config.model_copy(update={"model": local_path(config.model)})
        except ValidationError as error:
            nested = [f"speculative_config.{name}" for name in SpeculativeConfig.model_fields]
            raise InvalidConfig(explain(error, [*cls.model_fields, *nested, *also_known])) from None
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is below max_num_seqs={config.max_num_seqs}: "
                "a step could not give each running sequence a token"
            )
        speculation = config.speculative_config
        if speculation is not None and speculation.prompt_lookup_min > speculation.prompt_lookup_max:
            raise InvalidConfig(
                f"speculative_config.prompt_lookup_min={speculation.prompt_lookup_min} is above "
                f"prompt_lookup_max={speculation.prompt_lookup_max}"
            )
        if config.max_cpu_loras is not None and config.max_cpu_loras < config.max_loras:
            raise InvalidConfig(
                f"max_cpu_loras={config.max_cpu_loras} is below max_loras={config.max_loras}: a step's adapters must "
                "be kept for it"
            )
        return config

    @property
    def min_stage_tokens(self) -> int:
        """Tokens that a pipeline stage computes in about the time it takes to read its weights:
        fewer would not be faster.
        """
        return 32 if self.device == "cpu" else 256

    @property
    def num_kept_adapters(self) -> int:
        """That a rank keeps at most."""
        return (self.max_cpu_loras or self.max_loras) if self.enable_lora else 0

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
        if self.served_model_name is not None:
            return self.served_model_name
        return self.model if remote_name(self.model) is not None else Path(self.model).resolve().name


def remote_name(model: str) -> str | None:
    """With its scheme, as in hf://ORGANISATION/MODEL and s3://BUCKET/FOLDER; None for a path of
    this machine. ORGANISATION/MODEL is a name of the hub if there is no folder ORGANISATION here.
    """
    if model.startswith("file:"):
        return None
    if "://" in model:
        return model.rstrip("/")
    if _HUB_NAME.fullmatch(model) and not Path(model).parent.exists():
        return HUB_SCHEME + model
    return None


def is_hub_name(name: str) -> bool:
    """Whether it has the form ORGANISATION/MODEL."""
    return _HUB_NAME.fullmatch(name) is not None


def local_path(model: str) -> str:
    """A path of this machine, also where it is written as file://..."""
    return unquote(urlsplit(model).path) if model.startswith("file:") else model


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
