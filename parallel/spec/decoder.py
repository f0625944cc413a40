"""A decoder before it is sharded: its sizes, its tensors, and how many ranks can share it."""

import math
from dataclasses import dataclass

from parallel.errors import InvalidSharding
from parallel.spec.layer import LayerShape, MoEShape
from parallel.spec.published.scheme import Form, Scheme
from parallel.spec.rope import Rope
from parallel.spec.stages import stage_layers

Shapes = dict[str, tuple[int, ...]]

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
MAX_LEAVES = 8


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What the layers need from config.json. If the model has experts, the layers whose number,
    counted from 1, sparse_step divides have them.
    """

    vocab_size: int
    num_layers: int
    max_positions: int
    has_tied_embeddings: bool
    rope: Rope
    layer: LayerShape
    moe: MoEShape | None
    sparse_step: int
    dense_layers: frozenset[int]  # layers without experts, whatever sparse_step says
    scheme: Scheme | None = None  # of linears that were quantized before the checkpoint was published

    def moe_of(self, index: int) -> MoEShape | None:
        """The experts of layer `index`; None if it has an MLP."""
        return None if index in self.dense_layers or (index + 1) % self.sparse_step else self.moe

    @property
    def dealt_out(self) -> dict[str, int]:
        """The counts that the number of ranks must divide; key-value heads may instead be shared by
        ranks.
        """
        moe = self.moe
        counts = {"attention heads": self.layer.num_heads}
        if moe is not None:
            counts["experts"] = moe.num_experts
            if moe.shared_intermediate_size:
                counts["columns of the shared expert"] = moe.shared_intermediate_size
        if moe is None or self.sparse_step > 1 or self.dense_layers:
            counts["MLP columns"] = self.layer.intermediate_size
        return counts

    @property
    def num_leaves(self) -> int:
        """The number of leaves of row-parallel linears and of experts: the largest power of two up
        to 8 that divides all counts.
        """
        leaves = MAX_LEAVES
        while any(count % leaves for count in self.dealt_out.values()):
            leaves //= 2
        return leaves

    @property
    def head_layers(self) -> float:
        """The head's cost in layers, assuming that every other row is sampled: in decode all are,
        in prefill hardly any.
        """
        layers = [math.prod(shape) for name, shape in self.shapes().items() if name.startswith("model.layers.")]
        return self.vocab_size * self.layer.hidden_size * self.num_layers / sum(layers) / 2

    def check_sharding(self, tp_size: int, pp_size: int) -> None:
        """Raise InvalidSharding unless heads, MLP, experts and layers can be divided like that."""
        leaves, kv_heads = self.num_leaves, self.layer.num_kv_heads
        sizes = [
            size
            for size in range(1, leaves + 1)
            if leaves % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
        ]
        if tp_size not in sizes:
            counts = ", ".join(f"{count} {name}" for name, count in self.dealt_out.items())
            raise InvalidSharding(
                f"tensor_parallel_size={tp_size} does not divide {counts} and {kv_heads} key-value heads evenly; "
                f"this model can be cut into {_one_of(sizes)}"
            )
        if not 1 <= pp_size <= self.num_layers:
            raise InvalidSharding(
                f"pipeline_parallel_size={pp_size} exceeds the model's {self.num_layers} layers; "
                f"use 1 to {self.num_layers}"
            )

    def stages(self, pp_size: int) -> list[range]:
        """The layers of each pipeline stage."""
        head_layers = self.head_layers
        return [stage_layers(self.num_layers, rank, pp_size, head_layers) for rank in range(pp_size)]

    def stage_prefixes(self, pp_size: int) -> list[tuple[str, ...]]:
        """How the names begin of the tensors that ranks read, for each pipeline stage."""
        prefixes = [[f"model.layers.{index}." for index in layers] for layers in self.stages(pp_size)]
        prefixes[0].append(EMBEDDING + ".")
        prefixes[-1] += ["model.norm.", (EMBEDDING if self.has_tied_embeddings else HEAD) + "."]
        return [tuple(of_stage) for of_stage in prefixes]

    @property
    def unused(self) -> frozenset[str]:
        """Tensors that a checkpoint may also have: a tied head, and the rotary frequencies, which
        follow from config.json.
        """
        unused = {f"model.layers.{index}.self_attn.rotary_emb.inv_freq" for index in range(self.num_layers)}
        if self.scheme is not None:
            unused |= self.scheme.unused(self.shapes())
        return frozenset(unused | ({HEAD + ".weight"} if self.has_tied_embeddings else set()))

    def forms(self) -> dict[str, Form]:
        """Every tensor of the checkpoint as it is stored."""
        shapes = self.shapes()
        if self.scheme is None:
            return {name: Form(shape) for name, shape in shapes.items()}
        return self.scheme.forms(shapes)

    def shapes(self) -> Shapes:
        """Every tensor of the model; of the checkpoint too, if it is not quantized."""
        hidden = self.layer.hidden_size
        shapes: Shapes = {EMBEDDING + ".weight": (self.vocab_size, hidden), "model.norm.weight": (hidden,)}
        if not self.has_tied_embeddings:
            shapes[HEAD + ".weight"] = (self.vocab_size, hidden)
        for index in range(self.num_layers):
            moe = self.moe_of(index)
            mlp = _mlp_shapes(hidden, self.layer.intermediate_size) if moe is None else _moe_shapes(hidden, moe)
            of_layer = _attention_shapes(self.layer) | {f"mlp.{name}": shape for name, shape in mlp.items()}
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in of_layer.items()}
        return shapes


def _attention_shapes(layer: LayerShape) -> Shapes:
    """Includes the norms."""
    hidden, queries, keys = layer.hidden_size, layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
    }
    if layer.has_qkv_bias:
        shapes |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
        }
    if layer.has_qk_norm:
        shapes |= {"self_attn.q_norm.weight": (layer.head_dim,), "self_attn.k_norm.weight": (layer.head_dim,)}
    return shapes


def _mlp_shapes(hidden: int, intermediate: int) -> Shapes:
    return {
        "gate_proj.weight": (intermediate, hidden),
        "up_proj.weight": (intermediate, hidden),
        "down_proj.weight": (hidden, intermediate),
    }


def _moe_shapes(hidden: int, moe: MoEShape) -> Shapes:
    shapes: Shapes = {"gate.weight": (moe.num_experts, hidden)}
    for index in range(moe.num_experts):
        expert = _mlp_shapes(hidden, moe.intermediate_size)
        shapes |= {f"experts.{index}.{name}": shape for name, shape in expert.items()}
    if moe.shared_intermediate_size:
        shared = _mlp_shapes(hidden, moe.shared_intermediate_size)
        shapes |= {f"shared_expert.{name}": shape for name, shape in shared.items()}
        shapes["shared_expert_gate.weight"] = (1, hidden)
    return shapes


def _one_of(sizes: list[int]) -> str:
    return f"{', '.join(str(size) for size in sizes[:-1])} or {sizes[-1]} ranks" if len(sizes) > 1 else "1 rank only"
