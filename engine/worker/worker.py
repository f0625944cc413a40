"""One rank: its device, its shard of the model, its cache, and the steps it runs. It holds no
sequences.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

import ops
from engine.config import EngineConfig, ModelConfig, default_cpu_blocks, resolve_max_model_len
from engine.errors import InvalidConfig
from engine.fingerprint import weights_digest
from engine.manifest import Manifest
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.cores import Cores
from engine.worker.decode_graphs import CudaCapture, batch_sizes, context_limits
from engine.worker.kv_cache import CacheShape, KVCache, make_cache
from engine.worker.memory import decode_request, gpu_cache_bytes, no_room_advice, out_of_memory_advice, prefill_request
from engine.worker.model_runner import ModelRunner
from engine.worker.pending import PendingStep
from engine.worker.warm_up import warm_up
from ops.cpu import tape
from ops.interface import Ops
from parallel import decoder
from parallel.errors import GroupError, InvalidCheckpoint, InvalidSharding, UnsupportedModel
from parallel.groups import meeting
from parallel.groups.connect import connect
from parallel.groups.mesh import Mesh
from parallel.groups.pipeline import Stage
from parallel.groups.rejoinable import RejoinableGroup

LOOPBACK = "127.0.0.1"
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_REFUSALS = (UnsupportedModel, InvalidSharding, InvalidCheckpoint, ops.UnavailableBackend)


def open_store(host: str) -> Any:
    """The meeting point of all ranks, on a free port of `host`; rank 0 keeps it as long as it
    lives. It has a `.port`.
    """
    return meeting.open_store(host, 0, is_master=True, timeout=COLLECTIVE_TIMEOUT)


def join_store(host: str, port: int) -> Any:
    """The meeting point that rank 0 has opened."""
    return meeting.open_store(host, port, is_master=False, timeout=COLLECTIVE_TIMEOUT)


class Worker:
    """Loads its shard when it is made, gets its cache by `initialize_cache`, then executes steps.

    One thread's, but for `finish` and `abort`.
    """

    def __init__(
        self,
        config: EngineConfig,
        rank: int = 0,
        *,
        store: Any = None,
        host: str = LOOPBACK,
        num_ranks_here: int = 1,
    ) -> None:
        """`host`: an address of this machine that the other ranks can reach; they meet at `store`.
        Raises InvalidConfig.
        """
        self._config = config
        device = pick_device(config.device)
        self._cores = Cores(num_ranks_here, config.num_threads, binds=device.type == "cpu")
        torch.set_num_threads(self._cores.num_threads)
        model_config = ModelConfig.load(config.model)
        self._max_model_len = resolve_max_model_len(config, model_config)
        self._hidden_size = model_config.hidden_size
        mesh = Mesh(config.tensor_parallel_size, config.pipeline_parallel_size)
        stage_rank, tp_rank = mesh.coordinates(rank)
        self._mesh, self._rank, self._device = mesh, rank, device
        self._tp = RejoinableGroup(tp_rank, mesh.tp_size)
        self._pp = RejoinableGroup(stage_rank, mesh.pp_size)
        self._aborted = threading.Event()
        self._runner: ModelRunner | None = None
        self._cache_bytes: int | None = None  # room for the cache, as measured before there was one
        self._free_since_ns = 0  # when the last step that was finished had ended
        self._join_groups(store, host)
        self._stage = Stage(stage_rank, mesh.pp_size, self._pp)
        self._speaks = self._stage.is_last and tp_rank == 0
        dtype = getattr(torch, model_config.torch_dtype if config.dtype == "auto" else config.dtype)
        advice = "raise tensor_parallel_size or pipeline_parallel_size, or set quantization to int8 or int4"
        with _refusals_in_a_sentence(), out_of_memory_advice("the weights were loaded", advice):
            self._ops = ops.select(config.ops_backend, device, config.quantization, exact=config.exact)
            if dtype is torch.float16 and self._ops.NAME == "cpu":
                raise InvalidConfig("dtype=float16 is not computed on CPU; float32 or bfloat16 would work")
            check_cache_dtype(config.kv_cache_dtype, self._ops, device)
            self._model = decoder.build(
                model_config.hf_config, ops=self._ops, tp=self._tp, stage=self._stage, dtype=dtype, device=device
            )
            if (head_dim := self._model.head_dim) not in self._ops.HEAD_DIMS:
                raise InvalidConfig(
                    f"head_dim={head_dim} is not computed by the {self._ops.NAME} backend; "
                    "ops_backend=reference would work"
                )
            if config.load_format == "dummy":
                self._model.load_dummy_weights(config.seed)
            else:
                # A stage's ranks share a node, so each tensor of its files is verified there once.
                manifest = Manifest.load(config.model)
                digests = {} if manifest is None else manifest.share(tp_rank, mesh.tp_size)
                self._model.load_weights(config.model, digests)

    @property
    def arithmetic(self) -> dict[str, str]:
        """What results depend on beside the request, by name; not which rank this is, nor of how
        many.
        """
        config = self._config
        seed = f"dummy {config.seed}, " if config.load_format == "dummy" else ""
        return {
            "ops": ops.arithmetic(self._ops, self._device),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "quantization": str(config.quantization),
            "kv_cache_dtype": config.kv_cache_dtype,
            "weights": seed + weights_digest(config.model),
        }

    @property
    def report(self) -> str:
        """What it runs on, in one line."""
        model, backend = self._model, self._ops
        layers = f"layers {model.layer_ids.start}-{model.layer_ids.stop - 1}"
        name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type
        exact = "exact" if backend.EXACT else "not exact: a row's last bits depend on the rows beside it"
        fastest = ops.FASTEST.get(model.device.type, backend.NAME)
        if self._config.ops_backend == "auto" and fastest != backend.NAME:
            exact += f"; {fastest} cannot run: {ops.unavailable_reason(fastest, model.device)}"
        nice = f" at nice {os.nice(0)}" if os.nice(0) > 0 else ""
        dtype = str(model.dtype).removeprefix("torch.")
        if self._config.quantization is not None:
            dtype += f" with {self._config.quantization} weights"
        why_not = self._why_no_graphs()
        graphs = f"{self._graphs_name} for decode steps" if why_not is None else f"no {self._graphs_name} ({why_not})"
        return f"{name}, {dtype}, {layers}, ops backend {backend.NAME} ({exact}), {graphs}, {self._cores}{nice}"

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """How many device blocks (the null block counted in) and host blocks this rank has room
        for.
        """
        config, block_bytes = self._config, self._cache_shape.block_bytes
        num_cpu_blocks = int(config.swap_space * (1 << 30)) // block_bytes
        runner = None
        if self._model.device.type == "cuda":
            advice = "lower max_num_batched_tokens or max_num_seqs, or raise tensor_parallel_size"
            with out_of_memory_advice("steps of every kind were tried", advice):
                runner = self._make_runner(make_cache(self._cache_shape, 2, 0, self._model.device))
                warm_up(
                    runner,
                    max_num_seqs=config.max_num_seqs,
                    max_num_batched_tokens=config.max_num_batched_tokens,
                    max_model_len=self._max_model_len,
                )
        if config.num_gpu_blocks_override is not None:
            return config.num_gpu_blocks_override, num_cpu_blocks
        room = config.kv_cache_memory_bytes or self._default_cache_bytes(runner)
        if room < 2 * block_bytes:
            advice = f"raise kv_cache_memory_bytes to {2 * block_bytes} or more"
            if runner is not None and config.kv_cache_memory_bytes is None:
                _, total = torch.cuda.mem_get_info(self._model.device)
                advice = no_room_advice(2 * block_bytes - room, total, config.gpu_memory_utilization)
            raise InvalidConfig(f"{room} bytes are left for the cache, and two blocks take {2 * block_bytes}; {advice}")
        return room // block_bytes, num_cpu_blocks

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> float:
        """Make the cache; measured seconds to swap one block, one way (0 without host blocks)."""
        self._runner = None  # its cache and graphs go before the next one's come
        with out_of_memory_advice("the cache was made", "lower gpu_memory_utilization or kv_cache_memory_bytes"):
            cache = make_cache(self._cache_shape, num_gpu_blocks, num_cpu_blocks, self._model.device)
        self._runner = self._make_runner(cache)
        self._use_graphs(self._runner)
        num_moved = min(16, num_gpu_blocks, num_cpu_blocks)
        return self._runner.measure_swap(num_moved) / num_moved if num_moved else 0.0

    def rejoin(self, store: Any, host: str) -> None:
        """Meet the other ranks again, some of them new, at another store; weights and cache stay as
        they are.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # steps behind one that failed may still be in the groups' memory
        if self._runner is not None:
            self._runner.drop_graphs()  # they hold the groups' communicators and memory
        self._tp.leave()
        self._pp.leave()
        self._aborted.clear()
        self._join_groups(store, host)
        if self._runner is not None:
            self._use_graphs(self._runner)

    def abort(self) -> None:
        """From any thread: get this rank, and all that wait for it, out of what they do together,
        with an error.
        """
        self._aborted.set()
        self._tp.abort()
        self._pp.abort()

    @property
    def is_asynchronous(self) -> bool:
        """Whether `launch` returns before the step has ended, so that it is worth launching the
        next one meanwhile.
        """
        return bool(self._device.type == "cuda")

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        """Run one step; None unless this is the last stage's first rank. An error is every rank's:
        none is left waiting.
        """
        return self.finish(self.launch(request))

    def launch(self, request: ExecuteModelRequest) -> PendingStep:
        """Begin one step, after those launched before."""
        assert self._runner is not None, "there is no cache yet"
        try:
            with torch.inference_mode():
                return self._runner.launch(request)
        except Exception:
            self.abort()
            raise

    def finish(self, step: PendingStep) -> SamplerOutput | None:
        """Wait for the step that was launched the longest ago; as `execute`. May be another
        thread's than `launch`.
        """
        try:
            output = step.result(self._free_since_ns)
            self._tp.check()
            self._pp.check()
        except Exception:
            self.abort()
            raise
        self._free_since_ns = time.perf_counter_ns()
        return output

    def blames_peer(self, error: Exception) -> bool:
        """Whether an error of `execute` may be another rank's doing: a collective failed."""
        return isinstance(error, GroupError)

    def is_beyond_repair(self, error: Exception) -> bool:
        """Whether the device has failed: then no later step can succeed in this process."""
        return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)

    def _join_groups(self, store: Any, host: str) -> None:
        tp, pp = connect(self._mesh, self._rank, store, self._device, COLLECTIVE_TIMEOUT, host, self._aborted)
        self._tp.join(tp)
        self._pp.join(pp)

    @property
    def _cache_shape(self) -> CacheShape:
        model = self._model
        dtype = model.dtype if self._config.kv_cache_dtype == "auto" else torch.float8_e4m3fn
        return CacheShape(model.num_layers, model.num_kv_heads, model.head_dim, dtype)

    def _default_cache_bytes(self, runner: ModelRunner | None) -> int:
        """runner: on a GPU, to try the largest steps with."""
        config, model = self._config, self._model
        if runner is None:
            block_bytes = self._cache_shape.block_bytes
            return default_cpu_blocks(config, self._max_model_len, block_bytes) * block_bytes
        prefill = prefill_request(config.max_num_batched_tokens, config.max_num_seqs, self._max_model_len)
        decode = decode_request(config.max_num_seqs, self._max_model_len)
        num_graphs = 0
        if self._why_no_graphs() is None:
            num_graphs = len(batch_sizes(config.max_num_seqs)) * (1 + len(context_limits(self._max_model_len)))
        room = gpu_cache_bytes(runner, prefill, decode, model.device, config.gpu_memory_utilization, num_graphs)
        # A rank that meets new ones has its cache already: it measures only because theirs takes
        # all of them.
        if self._cache_bytes is None:
            self._cache_bytes = room
        return self._cache_bytes

    def _use_graphs(self, runner: ModelRunner) -> None:
        if self._why_no_graphs() is not None:
            return
        if self._device.type == "cuda":
            runner.use_graphs(CudaCapture(), max_num_seqs=self._config.max_num_seqs, max_model_len=self._max_model_len)
        else:
            runner.use_tapes(tape.capture, max_model_len=self._max_model_len)

    @property
    def _graphs_name(self) -> str:
        return "CUDA graphs" if self._device.type == "cuda" else "tapes"

    def _why_no_graphs(self) -> str | None:
        """Why decode steps are not run as graphs (on the CPU: tapes, small steps only); None if
        they are.
        """
        if self._config.enforce_eager:
            return "enforce_eager"
        if self._ops.NAME not in ops.CAPTURABLE:
            return f"the {self._ops.NAME} backend cannot be captured"
        if not self._tp.is_capturable:
            return "the ranks of a stage exchange by gloo or through the host"
        return None

    def _make_runner(self, cache: KVCache) -> ModelRunner:
        return ModelRunner(
            self._model,
            cache,
            ops=self._ops,
            stage=self._stage,
            hidden_size=self._hidden_size,
            speaks=self._speaks,
        )


def pick_device(name: str) -> torch.device:
    """This process' device of that name; raises InvalidConfig if there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidConfig("device=cuda, but no CUDA device can be seen here; device=cpu would work")
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def check_cache_dtype(name: str, backend: Ops, device: torch.device) -> None:
    """Raise InvalidConfig unless the backend can keep keys and values as kv_cache_dtype=name
    says.
    """
    if name == "auto":
        return
    if not backend.NAME.startswith("triton"):
        raise InvalidConfig(f"kv_cache_dtype={name} is for GPUs; auto would work")
    if (reason := ops.no_float8_reason(device)) is not None:
        raise InvalidConfig(f"kv_cache_dtype={name} {reason}; auto would work")


@contextmanager
def _refusals_in_a_sentence() -> Iterator[None]:
    try:
        yield
    except _REFUSALS as error:
        raise InvalidConfig(str(error)) from None
