"""The fields of an engine's configuration, and what follows from each."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.config.kv_events import KVEventsConfig
from engine.config.names import remote_name
from engine.config.speculation import SpeculativeConfig
from engine.sizes import Size

STORES_A_STEP = 16  # blocks that a rank copies before a step; it writes them beside the steps
LEAST_GIB = 2**-10  # of what is to hold blocks: a MiB
MOST_HOST_GIB = 65_536.0  # of a machine's memory; more is a slip, as bytes in place of GiB
MOST_FOLDER_GIB = 1_048_576.0  # of a folder
MOST_PROMPT = 1 << 30  # tokens
DEFAULT_CPU_CACHE_BYTES = 1 << 30  # of all ranks together, so that every sharding holds as many tokens

Transport = Literal["tcp", "nixl"]  # of blocks from node to node


class EngineFields(BaseModel):
    """Those of `EngineConfig`, which also holds them against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str  # a folder in Hugging Face layout; or a name, of the hub or an object store
    source: str | None = None  # what that name stood for when it was resolved, as NAME@REVISION; each node fetches it
    revision: str | None = None  # branch, tag or commit of a model of the hub; None: main
    download_dir: str | None = None  # where models are fetched to; None: the hub's cache, and that of the user
    served_model_name: str | None = None  # None: the folder's name, or the name as it was given
    tokenizer: str | None = None  # None: the model's folder
    generation_config: Literal["auto", "vllm"] = "auto"  # whose defaults requests have: the model's, or vLLM's own
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # Of matrices, when they are loaded; activations stay in dtype, but fp8 also rounds inputs.
    quantization: Literal["int8", "int4", "fp8"] | None = None
    load_format: Literal["auto", "dummy"] = "auto"  # dummy: random weights, for performance work
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ops_backend: Literal["auto", "reference", "cpu", "triton"] = "auto"
    exact: bool = True  # false: use cuBLAS on GPUs, whose last bits depend on the other rows
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = "auto"  # auto: the model's; fp8 halves the cache, on GPUs only
    enforce_eager: bool = False  # true: no CUDA graphs, on the CPU: no tapes
    enable_lora: bool = False  # whether requests may have low-rank adapters
    max_loras: int = Field(8, ge=1)  # different adapters in one step
    max_lora_rank: int = Field(64, ge=1, le=256)
    max_cpu_loras: int | None = Field(None, ge=1)  # that a rank keeps ready; None: max_loras
    seed: int = 0  # of dummy weights and of the seeds drawn for requests without one
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    num_threads: int | None = Field(None, ge=1)  # of each rank on CPU; None: the node's cores divided among its ranks
    # auto: local for one rank, but ray for one that serves on the CPU.
    distributed_executor_backend: Literal["auto", "local", "ray"] = "auto"
    accelerator_type: str | None = None  # kind of GPU, by Ray's name, as H100; None: any
    node_labels: dict[str, str] = Field(default_factory=dict)  # labels of Ray's that nodes must have; empty: any node
    max_model_len: Size | None = Field(None, ge=1)  # None: the model's; the cache must hold a sequence of that length
    block_size: Literal[16] = 16  # tokens; the kernels are written for it
    gpu_memory_utilization: float = Field(0.92, gt=0, le=1)
    # Per rank; None: profiled on GPU, `default_cpu_blocks` on CPU.
    kv_cache_memory_bytes: Size | None = Field(None, ge=1)
    num_gpu_blocks_override: int | None = Field(None, ge=2)
    swap_space: float = Field(0.25, ge=0, le=MOST_HOST_GIB)  # GiB of host memory per rank
    # GiB of host memory of all ranks; None: swap_space of each.
    kv_offloading_size: float | None = Field(None, ge=LEAST_GIB, le=MOST_HOST_GIB)
    kv_offloading_path: str | None = None  # a folder, here or of an object store, of blocks that outlive the engine
    kv_offloading_path_size: float = Field(10.0, ge=LEAST_GIB, le=MOST_FOLDER_GIB)  # GiB that the folder may take
    # With this folder: a producer answers once a prompt's blocks are there, a consumer only reads.
    kv_role: Literal["both", "producer", "consumer"] = "both"
    # By which an engine's blocks are served to other nodes; None: they are not. Set by
    # `cluster.launch.config.engines`, not by people, as are the next three.
    kv_peer_secret: str | None = Field(None, repr=False)
    kv_peer_transport: Transport = "tcp"  # of these, as far as both ends can
    # GiB, at most, of what it stores of its requests when it is told to end, for those that go on
    # with them; 0: nothing.
    kv_leaving_size: float = Field(0.0, ge=0, le=MOST_HOST_GIB)
    kv_leaving_path: str | None = None  # a folder of its own for that; None: that of kv_offloading_path
    enable_prefix_caching: bool = True
    max_num_batched_tokens: Size = Field(2048, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    long_prefill_token_threshold: Size = Field(0, ge=0)  # 0: no limit
    # About how long a step with prompt tokens may take beside others that decode; 0: no limit.
    max_decode_wait_ms: float = Field(200.0, ge=0)
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
    def stores_for_others(self) -> bool:
        """Whether its blocks go to a folder that other engines read, whatever becomes of it."""
        return self.kv_offloading_path is not None and self.kv_role != "consumer"

    @property
    def reads_blocks(self) -> bool:
        """Whether its ranks have files of blocks, or may be told of others'."""
        return self.kv_offloading_path is not None or self.kv_leaving_size > 0

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


def default_cpu_blocks(config: EngineFields, max_model_len: int, block_bytes: int) -> int:
    """Blocks of a rank's cache on CPU: those of its share of 1 GiB, and enough for one sequence of
    the longest length.
    """
    longest = -(-max_model_len // config.block_size) + 1  # the null block
    return max(DEFAULT_CPU_CACHE_BYTES // config.world_size // block_bytes, longest)
