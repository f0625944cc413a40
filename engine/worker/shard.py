"""What a rank keeps from its start to its end, over all epochs: its device, and its shard of the
model with its weights.
"""

from dataclasses import dataclass, replace

import torch

import ops
from engine.checkpoint.fingerprint import Sample, fingerprint
from engine.config import EngineConfig
from engine.offload.block_files import BlockFiles, Folder, layout_name
from engine.worker.cache.kv_cache import CacheShape, make_cache, make_draft_cache
from engine.worker.device.cores import Cores
from engine.worker.device.device import Device
from engine.worker.model_runner import ModelRunner
from engine.worker.ranks import Ranks
from parallel.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Shard:
    """Of it a rank makes a runner for each cache it has."""

    config: EngineConfig
    max_model_len: int
    device: Device
    cores: Cores
    ranks: Ranks
    model: Decoder
    sample: Sample  # of the weights that the model has, as far as their files are on this node
    draft: Decoder | None = None  # the draft model, on the rank that speaks
    known_digest: str | None = None  # of the weights, all files; None: that of `sample`

    def with_sample(self, sample: Sample) -> "Shard":
        """The same, once its model has other weights."""
        return replace(self, sample=sample, known_digest=None)

    def with_digest(self, weights_digest: str) -> "Shard":
        """The same, once it is known from all nodes' samples."""
        return replace(self, known_digest=weights_digest)

    def unload(self) -> None:
        """Have no weights."""
        self.model.unload()
        if self.draft is not None:
            self.draft.unload()

    def make_runner(self, num_gpu_blocks: int, num_cpu_blocks: int) -> ModelRunner:
        """With an empty cache of so many blocks. Raises torch.OutOfMemoryError."""
        cache = make_cache(self._cache_shape(self.model), num_gpu_blocks, num_cpu_blocks, self.device)
        adapters = self.config.num_device_adapters, self.config.num_kept_adapters, self.config.max_lora_rank
        files = self._files() if num_cpu_blocks else None
        draft = None
        if self.draft is not None:
            shape = self._cache_shape(self.draft)
            draft = self.draft, make_draft_cache(shape, cache, num_cpu_blocks, self.device)
        return ModelRunner(
            self.model,
            cache,
            device=self.device,
            speaks=self.ranks.speaks,
            adapters=adapters,
            files=files,
            draft=draft,
        )

    def use_graphs(self, runner: ModelRunner) -> None:
        """Have decode and small mixed steps run as graphs, unless something is against it."""
        if self.why_no_graphs() is not None:
            return
        if self.device.graphs_hold_torch:
            runner.use_graphs(
                self.device.capture(),
                max_num_seqs=self.config.max_num_seqs,
                max_model_len=self.max_model_len,
                max_num_batched_tokens=self.config.max_num_batched_tokens,
            )
        else:
            runner.use_tapes(self.device.capture(), max_model_len=self.max_model_len)

    def why_no_graphs(self) -> str | None:
        """Why steps are not run as graphs (on the CPU: tapes, small decode steps only); None if
        they are.
        """
        if self.config.enforce_eager:
            return "enforce_eager"
        if self.model.ops.NAME not in ops.CAPTURABLE:
            return f"the {self.model.ops.NAME} backend cannot be captured"
        if not self.ranks.tp.is_capturable:
            return "the ranks of a stage exchange by gloo or through the host"
        return None

    def _files(self) -> BlockFiles | None:
        """Of the third tier: this rank's part of each block. Raises InvalidConfig."""
        config = self.config
        if not config.reads_blocks:
            return None
        layout = layout_name(fingerprint(self.arithmetic), config.tensor_parallel_size, config.pipeline_parallel_size)
        rank = self.ranks.stage.rank * config.tensor_parallel_size + self.ranks.tp.rank
        paths = (config.kv_offloading_path, config.kv_leaving_path)
        kept, left = (None if path is None else Folder(path) for path in paths)
        uses_nixl = config.kv_peer_transport == "nixl" and config.kv_role != "producer"
        return BlockFiles(kept, layout, rank, config.kv_peer_secret, left=left, uses_nixl=uses_nixl)

    @property
    def block_bytes(self) -> int:
        """What a block of the cache takes here, that of the draft model's included."""
        models = [self.model, *([] if self.draft is None else [self.draft])]
        return sum(self._cache_shape(model).block_bytes for model in models)

    def _cache_shape(self, model: Decoder) -> CacheShape:
        dtype = model.dtype if self.config.kv_cache_dtype == "auto" else torch.float8_e4m3fn
        return CacheShape(model.num_layers, model.num_kv_heads, model.head_dim, dtype)

    @property
    def arithmetic(self) -> dict[str, str]:
        """What results depend on beside the request, by name; not which rank this is, nor of how
        many. Of weights in part on this node, what is here until all of it is known.
        """
        config = self.config
        return {
            "ops": ops.arithmetic(self.model.ops, self.device.torch_device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "quantization": str(config.quantization),
            "kv_cache_dtype": config.kv_cache_dtype,
            "weights": self.known_digest or self.sample.digest,
        }

    @property
    def report(self) -> str:
        """What it runs on, in one line."""
        model, backend, device = self.model, self.model.ops, self.device.torch_device
        layers = f"layers {model.layer_ids.start}-{model.layer_ids.stop - 1}"
        exact = "exact" if backend.EXACT else "not exact: a row's last bits depend on the rows beside it"
        fastest = ops.FASTEST.get(device.type, backend.NAME)
        if self.config.ops_backend == "auto" and fastest != backend.NAME:
            exact += f"; {fastest} cannot run: {ops.unavailable_reason(fastest, device)}"
        dtype = str(model.dtype).removeprefix("torch.")
        if self.config.quantization is not None:
            dtype += f" with {self.config.quantization} weights"
        if model.config.scheme is not None:
            dtype += f" with {model.config.scheme.name} weights"
        why_not, graphs = self.why_no_graphs(), self.device.graphs_name
        kinds = "decode and small mixed steps" if self.device.graphs_hold_torch else "decode steps"
        graphs = f"{graphs} for {kinds}" if why_not is None else f"no {graphs} ({why_not})"
        cores = f"{self.cores}{self.cores.nice}"
        return f"{self.device.name}, {dtype}, {layers}, ops backend {backend.NAME} ({exact}), {graphs}, {cores}"
