"""Qwen2 (dense): grouped-query attention with biases on queries, keys and values, gated MLP, RMS norm, rotary positions."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from parallel.embedding import ParallelLMHead, VocabParallelEmbedding
from parallel.errors import InvalidSharding, UnsupportedModel
from parallel.group import Group
from parallel.layers import DecoderLayer, LayerShape, RMSNorm
from parallel.mesh import stage_layers
from parallel.pipeline import Stage
from parallel.rotary import Rope, cos_sin_table, read_rope
from parallel.weights import Checkpoint, Dummy, Shapes, Weights

MAX_LEAVES = 8


@dataclass(frozen=True, slots=True)
class Qwen2Config:
    """What the layers need of config.json."""

    vocab_size: int
    num_layers: int
    max_positions: int
    has_tied_embeddings: bool
    rope: Rope
    layer: LayerShape

    @classmethod
    def from_hf(cls, hf_config: dict[str, Any]) -> Self:
        """From config.json as a dictionary; raises UnsupportedModel, naming the field and what is supported."""
        if missing := [name for name in REQUIRED if not isinstance(hf_config.get(name), int)]:
            raise UnsupportedModel(f"config.json: {', '.join(missing)} must be given as integers")
        for name, supported in SUPPORTED.items():
            if hf_config.get(name, supported[0]) not in supported:
                raise UnsupportedModel(f"config.json: {name}={hf_config[name]!r} is not supported; {supported[0]!r} is")
        if "sliding_attention" in (hf_config.get("layer_types") or []):
            raise UnsupportedModel("config.json: layer_types names sliding_attention; only full_attention is supported")
        num_heads = hf_config["num_attention_heads"]
        num_kv_heads = hf_config.get("num_key_value_heads") or num_heads
        intermediate_size = hf_config["intermediate_size"]
        if num_heads % num_kv_heads:
            raise UnsupportedModel(f"config.json: {num_heads} heads cannot share {num_kv_heads} key-value heads evenly")
        layer = LayerShape(
            hidden_size=hf_config["hidden_size"],
            intermediate_size=intermediate_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=hf_config.get("head_dim") or hf_config["hidden_size"] // num_heads,
            has_qkv_bias=hf_config.get("attention_bias", True),
            norm_eps=hf_config.get("rms_norm_eps", 1e-6),
            num_leaves=num_leaves(num_heads, intermediate_size),
        )
        return cls(
            vocab_size=hf_config["vocab_size"],
            num_layers=hf_config["num_hidden_layers"],
            max_positions=hf_config["max_position_embeddings"],
            has_tied_embeddings=hf_config.get("tie_word_embeddings", False),
            rope=read_rope(hf_config),
            layer=layer,
        )

    def check_sharding(self, tp_size: int, pp_size: int) -> None:
        """Raise InvalidSharding unless heads, MLP and layers can be dealt out so."""
        layer = self.layer
        sizes = [
            size
            for size in range(1, layer.num_leaves + 1)
            if layer.num_leaves % size == 0 and (layer.num_kv_heads % size == 0 or size % layer.num_kv_heads == 0)
        ]
        if tp_size not in sizes:
            raise InvalidSharding(
                f"tensor_parallel_size={tp_size} does not divide {layer.num_heads} attention heads, {layer.num_kv_heads} "
                f"key-value heads and {layer.intermediate_size} MLP columns evenly; this model can be cut into "
                f"{_one_of(sizes)}"
            )
        if not 1 <= pp_size <= self.num_layers:
            raise InvalidSharding(
                f"pipeline_parallel_size={pp_size} exceeds the model's {self.num_layers} layers; "
                f"use 1 to {self.num_layers}"
            )

    def shapes(self) -> Shapes:
        """Every tensor of the checkpoint."""
        layer = self.layer
        hidden, intermediate = layer.hidden_size, layer.intermediate_size
        queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        of_layer: Shapes = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (intermediate, hidden),
            "mlp.up_proj.weight": (intermediate, hidden),
            "mlp.down_proj.weight": (hidden, intermediate),
        }
        if layer.has_qkv_bias:
            of_layer |= {
                "self_attn.q_proj.bias": (queries,),
                "self_attn.k_proj.bias": (keys,),
                "self_attn.v_proj.bias": (keys,),
            }
        shapes: Shapes = {EMBEDDING + ".weight": (self.vocab_size, hidden), "model.norm.weight": (hidden,)}
        if not self.has_tied_embeddings:
            shapes[HEAD + ".weight"] = (self.vocab_size, hidden)
        for index in range(self.num_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in of_layer.items()}
        return shapes


EMBEDDING, HEAD = "model.embed_tokens", "lm_head"

REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)

# Fields that change what is computed, and the values that are computed here; the first is also meant if it is absent.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
    "mlp_bias": (False, None),
}


def num_leaves(num_heads: int, intermediate_size: int) -> int:
    """Virtual shards of the row-parallel linears: the largest power of two up to 8 that divides heads and MLP."""
    leaves = MAX_LEAVES
    while num_heads % leaves or intermediate_size % leaves:
        leaves //= 2
    return leaves


class Qwen2ForCausalLM:
    """One rank's shard: its heads and columns of its stage's layers; embeddings on the first stage, the head on the last."""

    def __init__(
        self, config: Qwen2Config, *, ops: Ops, tp: Group, stage: Stage, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.ops = ops
        self.stage = stage
        self.dtype = dtype
        self.device = device
        self.layer_ids = stage_layers(config.num_layers, stage.rank, stage.size)
        self.layers = [DecoderLayer(config.layer, ops=ops, group=tp) for _ in self.layer_ids]
        self.num_layers = len(self.layers)
        self.num_kv_heads = self.layers[0].qkv.num_kv_heads
        self.head_dim = config.layer.head_dim
        self.embedding = VocabParallelEmbedding(config.vocab_size, ops=ops, group=tp, dtype=dtype)
        self.norm = RMSNorm(config.layer.norm_eps, ops=ops)
        self.head = ParallelLMHead(config.vocab_size, ops=ops, group=tp)

    def load_weights(self, folder: str) -> None:
        """From the safetensors files of `folder`; raises InvalidCheckpoint."""
        # Tied checkpoints may hold the head too; older ones hold the rotary frequencies, which follow from the config.
        unused = {f"model.layers.{index}.self_attn.rotary_emb.inv_freq" for index in range(self.config.num_layers)}
        if self.config.has_tied_embeddings:
            unused.add(HEAD + ".weight")
        self._load(Checkpoint(folder, self.config.shapes(), unused, self.dtype, self.device))

    def load_dummy_weights(self, seed: int) -> None:
        """Random ones, the same model whatever the sharding."""
        self._load(Dummy(seed, self.config.shapes(), self.dtype, self.device))

    def _load(self, weights: Weights) -> None:
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

    def forward(
        self,
        input_ids: Tensor | None,
        residual: Tensor | None,
        positions: Tensor,
        kv_caches: list[tuple[Tensor, Tensor]],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """The residual stream [T, D] dtype after this stage's layers.

        input_ids [T] int32 on the first stage; elsewhere residual [T, D] dtype of the stage before, which is written to.
        positions [T] int32; kv_caches: keys and values of each of this stage's layers.
        """
        if self.stage.is_first:
            assert input_ids is not None
            residual = self.embedding(input_ids)
        assert residual is not None
        update = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            update = layer(update, residual, positions, self.cos_sin, kv_cache, metadata)
        assert update is not None, "a stage has at least one layer"
        self.ops.add(update, residual)
        return residual

    def logits(self, residual: Tensor) -> Tensor:
        """residual [R, D] dtype of the last stage -> [R, V] float32, on each of its ranks."""
        return self.head(self.norm(residual))


def _one_of(sizes: list[int]) -> str:
    return f"{', '.join(str(size) for size in sizes[:-1])} or {sizes[-1]} ranks" if len(sizes) > 1 else "1 rank only"
