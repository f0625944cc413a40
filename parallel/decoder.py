"""A decoder-only language model, one rank's shard of it. Architectures differ in the layers that
their config.json describes.
"""

import torch
from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from parallel.adapters.adapter import Factors, RowAdapters, ShardAdapter
from parallel.embedding import ParallelLMHead, VocabParallelEmbedding
from parallel.errors import UnsupportedModel
from parallel.groups.group import Group
from parallel.groups.pipeline import Stage
from parallel.layers import DecoderLayer, RMSNorm
from parallel.rotary import cos_sin_table
from parallel.spec.decoder import EMBEDDING, HEAD, DecoderConfig
from parallel.weights import Checkpoint, Dummy, Weights


class Decoder:
    """One rank's shard, without weights yet: its heads and columns of its stage's layers;
    embeddings on the first stage, the head on the last. Raises InvalidSharding if the model cannot
    be cut into `tp.size` ranks and `stage.size` stages, UnsupportedModel if `ops` does not compute
    with the codes that the checkpoint was published with.
    """

    def __init__(
        self, config: DecoderConfig, *, ops: Ops, tp: Group, stage: Stage, dtype: torch.dtype, device: torch.device
    ) -> None:
        config.check_sharding(tp.size, stage.size)
        if config.scheme is not None and config.scheme.kind not in ops.PUBLISHED:
            raise UnsupportedModel(
                f"the checkpoint is quantized ({config.scheme.name}), which the {ops.NAME} backend does not compute; "
                "ops_backend=auto would work, or the original checkpoint with quantization=int4 or int8"
            )
        self.config = config
        self.ops = ops
        self.stage = stage
        self.dtype = dtype
        self.device = device
        self.layer_ids = config.stages(stage.size)[stage.rank]
        self._tp = tp
        self.unload()
        self.num_layers = len(self.layers)
        self.num_kv_heads = self.layers[0].qkv.num_kv_heads
        self.head_dim = config.layer.head_dim

    def unload(self) -> None:
        """Have no weights, as at first."""
        config, ops, tp = self.config, self.ops, self._tp
        self.layers = [
            DecoderLayer(config.layer, config.moe_of(index), num_leaves=config.num_leaves, ops=ops, group=tp)
            for index in self.layer_ids
        ]
        self.embedding = VocabParallelEmbedding(config.vocab_size, ops=ops, group=tp, dtype=self.dtype)
        self.norm = RMSNorm(config.layer.norm_eps, ops=ops)
        self.head = ParallelLMHead(config.vocab_size, ops=ops, group=tp)

    def load_weights(self, folder: str, digests: dict[str, str]) -> None:
        """From the safetensors files of `folder`, which may lack those that hold nothing of this
        stage; raises InvalidCheckpoint.

        `digests`: SHA-256 of tensors that this rank is to verify if it reads them, in hexadecimal.
        """
        config, own = self.config, self.config.stage_prefixes(self.stage.size)[self.stage.rank]
        with Checkpoint(
            folder, config.shapes(), config.unused, self.dtype, self.device, digests, config.scheme, own
        ) as checkpoint:
            if config.has_tied_embeddings and self.stage.is_first:
                part = self.embedding.part
                checkpoint.check_tied(HEAD, EMBEDDING, slice(part.start, min(part.stop, config.vocab_size)))
            self.load(checkpoint)

    def load_dummy_weights(self, seed: int) -> None:
        """Random weights, the same model for every sharding."""
        self.load(Dummy(seed, self.config.shapes(), self.dtype, self.device))

    def load(self, weights: Weights) -> None:
        """From any source; raises InvalidCheckpoint."""
        self.cos_sin = cos_sin_table(self.config.rope, self.head_dim, self.config.max_positions).to(self.device)
        if self.stage.is_first:
            self.embedding.load(weights, EMBEDDING)
        for index, layer in zip(self.layer_ids, self.layers, strict=True):
            layer.load(weights, f"model.layers.{index}")
        if self.stage.is_last:
            self.norm.load(weights, "model.norm")
            if self.config.has_tied_embeddings and self.stage.is_first:
                self.head.weight = self.embedding.weight
            else:
                self.head.load(weights, EMBEDDING if self.config.has_tied_embeddings else HEAD)

    def load_adapter(self, factors: dict[str, Factors]) -> ShardAdapter:
        """This rank's part of an adapter, whose tensors are those of `parallel.spec.adapter`."""
        adapter = ShardAdapter()
        for index, layer in zip(self.layer_ids, self.layers, strict=True):
            layer.load_adapter(factors, f"model.layers.{index}", adapter)
        return adapter

    def forward(
        self,
        input_ids: Tensor | None,
        residual: Tensor | None,
        positions: Tensor,
        kv_caches: list[tuple[Tensor, Tensor]],
        metadata: AttentionMetadata,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """The residual stream [T, D] dtype after this stage's layers; of the last stage, behind the
        final norm: the model's hidden states.

        input_ids [T] int32 on the first stage, unless they are embedded already; else residual [T,
        D] dtype of the stage before, or the embeddings, which is written to. positions [T] int32;
        kv_caches: keys and values of each of this stage's layers.
        adapters: those of the rows that have one.
        """
        if residual is None:
            assert self.stage.is_first and input_ids is not None
            residual = self.embedding(input_ids)
        update = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            update = layer(update, residual, positions, self.cos_sin, kv_cache, metadata, adapters)
        assert update is not None, "a stage has at least one layer"
        if self.stage.is_last:
            return self.norm.add(update, residual)
        self.ops.add(update, residual)
        return residual

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, D] dtype of the last stage -> [R, V] float32, on each of its ranks."""
        return self.head(hidden)
