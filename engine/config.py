"""The configuration: read once, frozen; unknown keys are rejected, naming the nearest known one."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.errors import InvalidConfig
from engine.sizes import Size

STORES_A_STEP = 16  # blocks that a rank copies before a step; it writes them beside the steps
LEAST_GIB = 2**-10  # of what is to hold blocks: a MiB
MOST_HOST_GIB = 65_536.0  # of a machine's memory; more is a slip, as bytes in place of GiB
MOST_FOLDER_GIB = 1_048_576.0  # of a folder
MOST_PROMPT = 1 << 30  # tokens
MIN_SECRET = 16  # characters
DRAFT_MODEL_TOKENS = 4  # that it guesses at once, at most, unless it is told
MOST_MESSAGES = (1 << 31) - 2  # ZeroMQ counts them in 32 bits, and one more ends a replay
DEFAULT_CPU_CACHE_BYTES = 1 << 30  # of all ranks together, so that every sharding holds as many tokens

_OF_DRAFT = ("model", "source", "revision", "quantization")  # keys of `SpeculativeConfig`
_ENDPOINT = re.compile(r"tcp://\S+:(\*|[0-9]{1,5})|(ipc|inproc)://[^\0]+")
HUB_SCHEME = "hf://"
# Keys of other servers that people bring, and what to do instead.
ABSENT = {
    "trust_remote_code": "code that a checkpoint brings is never run",
    "hf_overrides": "edit config.json in a copy of the folder",
    "rope_scaling": "write it into config.json, in a copy of the folder",
    "rope_theta": "write it into config.json, in a copy of the folder",
}
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


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
        others = _OF_DRAFT if self.method == "ngram" else ("prompt_lookup_max", "prompt_lookup_min")
        for name in others:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise InvalidConfig(f"speculative_config.{name}={value} is of no use with method={self.method}")


def _as_endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if found is None or int((found[1] or "*").replace("*", "0")) >= 1 << 16:
        raise ValueError("is not tcp://HOST:PORT, with a port of 65535 at most or *, ipc://PATH or inproc://NAME")
    return text


Endpoint = Annotated[str, AfterValidator(_as_endpoint)]  # of ZeroMQ


class KVEventsConfig(BaseModel):
    """What routers are told of an engine's cache; names are vLLM's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    # Of the first engine of a machine; the next ones take the next ports.
    endpoint: Endpoint = "tcp://127.0.0.1:5557"
    replay_endpoint: Endpoint | None = None  # where missed messages can be asked again
    buffer_steps: int = Field(10_000, ge=1, le=MOST_MESSAGES)  # messages that are kept for that
    hwm: int = Field(100_000, ge=1, le=MOST_MESSAGES)  # messages that wait for a slow subscriber, before it loses some
    max_queue_size: int = Field(100_000, ge=1)  # messages that wait to be sent, before some are dropped
    topic: str = ""


class EngineConfig(BaseModel):
    """Everything an engine is started with; names and defaults are those of the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
    accelerator_type: str | None = None  # kind of GPU, by Ray's name, as H100; None: any
    node_labels: dict[str, str] = Field(default_factory=dict)  # labels of Ray's that nodes must have; empty: any node
    max_model_len: Size | None = Field(None, ge=1)  # None: the model's; the cache must hold a sequence of that length
    block_size: Literal[16] = 16  # tokens; the kernels are written for it
    gpu_memory_utilization: float = Field(0.92, gt=0, le=1)
    kv_cache_memory_bytes: Size | None = Field(
        None, ge=1
    )  # per rank; None: profiled on GPU, `default_cpu_blocks` on CPU
    num_gpu_blocks_override: int | None = Field(None, ge=2)
    swap_space: float = Field(0.25, ge=0, le=MOST_HOST_GIB)  # GiB of host memory per rank
    kv_offloading_size: float | None = Field(
        None, ge=LEAST_GIB, le=MOST_HOST_GIB
    )  # GiB of host memory of all ranks; None: swap_space of each
    kv_offloading_path: str | None = None  # a folder, here or of an object store, of blocks that outlive the engine
    kv_offloading_path_size: float = Field(10.0, ge=LEAST_GIB, le=MOST_FOLDER_GIB)  # GiB that the folder may take
    # With this folder: a producer answers once a prompt's blocks are there, a consumer only reads.
    kv_role: Literal["both", "producer", "consumer"] = "both"
    # By which a producer's blocks are served to other nodes; None: they are not. Set by
    # `cluster.launch.config.engines`, not by people.
    kv_peer_secret: str | None = Field(None, repr=False)
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
    kv_events_config: KVEventsConfig | None = None  # None: nobody is told
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
            if config.draft is not None:
                config = config.with_draft(config.draft.model_copy(update={"model": local_path(config.draft.model)}))
        except ValidationError as error:
            nested = [f"speculative_config.{name}" for name in SpeculativeConfig.model_fields]
            nested += [f"kv_events_config.{name}" for name in KVEventsConfig.model_fields]
            raise InvalidConfig(explain(error, [*cls.model_fields, *nested, *also_known])) from None
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is below max_num_seqs={config.max_num_seqs}: "
                "a step could not give each running sequence a token"
            )
        if config.speculative_config is not None:
            config.speculative_config.check()
        _check_devices(config)
        _check_tiers(config)
        if config.max_cpu_loras is not None and config.max_cpu_loras < config.max_loras:
            raise InvalidConfig(
                f"max_cpu_loras={config.max_cpu_loras} is below max_loras={config.max_loras}: a step's adapters must "
                "be kept for it"
            )
        return config

    @property
    def draft(self) -> Self | None:
        """That of the draft model, as if one rank served it alone; None if there is none."""
        own = self.speculative_config
        if own is None or own.model is None:
            return None
        return self.model_copy(
            update={name: getattr(own, name) for name in _OF_DRAFT}
            | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "served_model_name": None}
            | {"tokenizer": None, "enable_lora": False, "speculative_config": None}
        )

    def with_draft(self, draft: Self) -> Self:
        """The same with another `draft`."""
        assert self.speculative_config is not None
        names = self.speculative_config.model_copy(update={name: getattr(draft, name) for name in _OF_DRAFT})
        return self.model_copy(update={"speculative_config": names})

    @property
    def min_stage_tokens(self) -> int:
        """Tokens that a pipeline stage computes in about the time it takes to read its weights:
        fewer would not be faster.
        """
        return 32 if self.device == "cpu" else 256

    @property
    def num_kept_adapters(self) -> int:
        """That a rank keeps at most, in the host's memory."""
        return (self.max_cpu_loras or self.max_loras) if self.enable_lora else 0

    @property
    def num_device_adapters(self) -> int:
        """That a rank has at most in its device's memory: those of a step, where that is not the
        host's.
        """
        return min(self.max_loras, self.num_kept_adapters) if self.device == "cuda" else self.num_kept_adapters

    @property
    def host_cache_bytes(self) -> int:
        """Of a rank's blocks in the host's memory."""
        if self.kv_offloading_size is None:
            return int(self.swap_space * (1 << 30))
        return int(self.kv_offloading_size * (1 << 30)) // self.world_size

    @property
    def stores_a_step(self) -> int:
        """Blocks that a rank copies to the folder beside a step: a producer, all that the step
        computes.
        """
        if self.kv_role == "consumer":
            return 0
        return STORES_A_STEP if self.kv_role == "both" else self.max_num_batched_tokens // self.block_size + 1

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


def _check_devices(config: EngineConfig) -> None:
    """Raises InvalidConfig for what the configured device or executor excludes, whatever machine it
    is.
    """
    if config.distributed_executor_backend == "local" and config.world_size > 1:
        raise InvalidConfig(
            f"distributed_executor_backend=local runs one rank, not tensor_parallel_size="
            f"{config.tensor_parallel_size} × pipeline_parallel_size={config.pipeline_parallel_size}; use ray"
        )
    if config.accelerator_type is not None and config.device == "cpu":
        raise InvalidConfig(f"accelerator_type={config.accelerator_type} is a kind of GPU, and device=cpu uses none")


def _check_tiers(config: EngineConfig) -> None:
    """Raises InvalidConfig for keys of the cache's tiers of which one makes another useless."""
    path, fields = config.kv_offloading_path, EngineConfig.model_fields
    if path is None and config.kv_offloading_path_size != fields["kv_offloading_path_size"].default:
        raise InvalidConfig(
            f"kv_offloading_path_size={config.kv_offloading_path_size:g} bounds a folder, and kv_offloading_path "
            "names none"
        )
    if config.kv_offloading_size is not None and config.swap_space != fields["swap_space"].default:
        raise InvalidConfig(
            f"kv_offloading_size={config.kv_offloading_size:g}, of all ranks, takes the place of "
            f"swap_space={config.swap_space:g}, of each: set one of them"
        )
    if path is not None and not config.enable_prefix_caching:
        raise InvalidConfig(f"kv_offloading_path={path} needs enable_prefix_caching, which finds what is there")
    if path is not None and not config.host_cache_bytes:
        raise InvalidConfig(
            f"kv_offloading_path={path} needs host memory that blocks pass through; swap_space={config.swap_space:g} "
            "leaves none"
        )
    if path is not None and config.draft is not None:
        raise InvalidConfig(
            f"kv_offloading_path={path} cannot be used with a draft model ({config.draft.model}), whose blocks are "
            "not stored"
        )
    if config.kv_role != "both" and path is None:
        raise InvalidConfig(f"kv_role={config.kv_role} is of no use without kv_offloading_path")
    _check_peer_secret(config)


def _check_peer_secret(config: EngineConfig) -> None:
    """Raises InvalidConfig, which does not show it, for one that nobody would use, or might
    guess.
    """
    secret, path = config.kv_peer_secret, config.kv_offloading_path
    if secret is None:
        return
    if len(secret) < MIN_SECRET:
        raise InvalidConfig(f"kv_peer_secret has {len(secret)} characters, and needs {MIN_SECRET} or more")
    if path is None:
        raise InvalidConfig("kv_peer_secret is of no use without kv_offloading_path, whose blocks are served by it")
    if config.kv_role == "both":
        raise InvalidConfig("kv_peer_secret is of no use with kv_role=both: a producer serves consumers by it")
    if "://" in path and not path.startswith("file:"):
        raise InvalidConfig(f"kv_peer_secret is of no use with kv_offloading_path={path}, which all nodes read")


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


def explain(error: ValidationError, known: list[str], secrets: tuple[str, ...] = ("api_key", "kv_peer_secret")) -> str:
    """A pydantic error in a sentence: path, value, and the nearest known key for an unknown one.
    Values whose path begins with one of `secrets` are not shown.
    """
    # A misspelt key first: it may be why another one is missing.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        if (why := ABSENT.get(str(first["loc"][-1]))) is not None:
            return f"unknown key {path!r}: {why}"
        near = difflib.get_close_matches(path, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {path!r}{hint}"
    if first["type"] == "missing":
        return f"{path} is required"
    message = first["msg"].removeprefix("Value error, ")
    if path.startswith(secrets) or not path:
        return f"{path}: {message}".removeprefix(": ")
    return f"{path}={first['input']!r}: {message}"
