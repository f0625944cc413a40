"""Reads the parts of config.json that architectures share; errors name the field, its value and
what is supported.
"""

from typing import Any

from parallel.errors import UnsupportedModel
from parallel.spec.decoder import DecoderConfig
from parallel.spec.layer import LayerShape, MoEShape
from parallel.spec.published.read import read_scheme
from parallel.spec.rope import read_rope

REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)

# Layers, or experts of all layers, that a config.json may name: each of them is described before
# any is looked for. The largest models published have 12,000.
MAX_PARTS = 100_000

# Fields that change what is computed, and the supported values; the first is the default.
Supported = dict[str, tuple[Any, ...]]
SUPPORTED: Supported = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "mlp_bias": (False, None),
    "tie_word_embeddings": (False, True, None),
}


def read_decoder(
    hf_config: dict[str, Any],
    *,
    has_qkv_bias: bool,
    has_qk_norm: bool,
    supported: Supported | None = None,
    moe: MoEShape | None = None,
) -> DecoderConfig:
    """From config.json as a dictionary; raises UnsupportedModel. `supported`: of this architecture,
    in addition to SUPPORTED.
    """
    require_integers(hf_config, REQUIRED)
    _check_supported(hf_config, SUPPORTED | (supported or {}))
    _check_attention(hf_config)
    num_heads, num_layers = hf_config["num_attention_heads"], hf_config["num_hidden_layers"]
    _check_size(num_layers, moe)
    num_kv_heads = hf_config.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"config.json: {num_heads} heads cannot share {num_kv_heads} key-value heads evenly")
    layer = LayerShape(
        hidden_size=hf_config["hidden_size"],
        intermediate_size=hf_config["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hf_config.get("head_dim") or hf_config["hidden_size"] // num_heads,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
        norm_eps=_norm_eps(hf_config),
    )
    scheme = read_scheme(hf_config)
    if moe is not None and scheme is not None and (scheme.shuffles or scheme.kind == "w8a8"):
        what = "inputs in order of their groups (act-order)" if scheme.shuffles else "inputs rounded to 8 bits"
        raise UnsupportedModel(f"config.json: experts with {what} are not computed ({scheme.name})")
    rope = read_rope(hf_config)
    config = DecoderConfig(
        vocab_size=hf_config["vocab_size"],
        num_layers=num_layers,
        max_positions=rope.max_positions,
        has_tied_embeddings=bool(hf_config.get("tie_word_embeddings", False)),
        rope=rope,
        layer=layer,
        moe=moe,
        sparse_step=_sparse_step(hf_config) if moe is not None else 1,
        dense_layers=_dense_layers(hf_config, num_layers) if moe is not None else frozenset(),
        scheme=scheme,
    )
    if scheme is not None:
        scheme.check(config.shapes())
    return config


def read_moe(hf_config: dict[str, Any], *, num_experts: str, has_shared: bool) -> MoEShape:
    """`num_experts`: the field that says how many there are. Raises UnsupportedModel."""
    shared = ["shared_expert_intermediate_size"] if has_shared else []
    require_integers(hf_config, (num_experts, "num_experts_per_tok", "moe_intermediate_size", *shared))
    moe = MoEShape(
        num_experts=hf_config[num_experts],
        num_chosen=hf_config["num_experts_per_tok"],
        intermediate_size=hf_config["moe_intermediate_size"],
        normalizes=hf_config.get("norm_topk_prob", False),
        shared_intermediate_size=hf_config["shared_expert_intermediate_size"] if has_shared else 0,
    )
    if not isinstance(moe.normalizes, bool):
        raise UnsupportedModel(f"config.json: norm_topk_prob={moe.normalizes!r} is neither true nor false")
    if moe.num_chosen > moe.num_experts:
        raise UnsupportedModel(
            f"config.json: num_experts_per_tok={moe.num_chosen} exceeds {num_experts}={moe.num_experts}"
        )
    return moe


def require_integers(hf_config: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise UnsupportedModel unless each is a positive integer."""
    wrong = [name for name in names if type(hf_config.get(name)) is not int or hf_config[name] < 1]
    if wrong:
        values = ", ".join(f"{name}={hf_config.get(name)!r}" for name in wrong)
        raise UnsupportedModel(f"config.json: {values} must be given as positive integers")


def _check_supported(hf_config: dict[str, Any], supported: Supported) -> None:
    for name, values in supported.items():
        if hf_config.get(name, values[0]) not in values:
            raise UnsupportedModel(f"config.json: {name}={hf_config[name]!r} is not supported; {values[0]!r} is")


def _check_size(num_layers: int, moe: MoEShape | None) -> None:
    num_experts = 1 if moe is None else moe.num_experts
    if num_layers * num_experts > MAX_PARTS:
        times = "" if moe is None else f" times {num_experts} experts"
        raise UnsupportedModel(f"config.json: num_hidden_layers={num_layers}{times} is above {MAX_PARTS}, the limit")


def _check_attention(hf_config: dict[str, Any]) -> None:
    if (chunked := hf_config.get("dual_chunk_attention_config")) is not None:
        trained = chunked.get("original_max_position_embeddings", "?") if isinstance(chunked, dict) else "?"
        raise UnsupportedModel(
            "config.json: dual_chunk_attention_config (Qwen2.5-1M's attention) is not computed; a copy of the folder "
            f"without this field has full attention, which the model was trained with for {trained} tokens: set "
            "max_model_len to no more"
        )
    kinds = hf_config.get("layer_types") or []
    other = next((kind for kind in kinds if kind != "full_attention"), None) if isinstance(kinds, list) else kinds
    if other is not None:
        raise UnsupportedModel(f"config.json: layer_types names {other}; only full_attention is supported")


def _norm_eps(hf_config: dict[str, Any]) -> float:
    eps = hf_config.get("rms_norm_eps", 1e-6)
    if type(eps) not in (int, float) or not 0 <= eps < 1:
        raise UnsupportedModel(f"config.json: rms_norm_eps={eps!r} is no number from 0 to 1")
    return float(eps)


def _sparse_step(hf_config: dict[str, Any]) -> int:
    step = hf_config.get("decoder_sparse_step", 1)
    if type(step) is not int or step < 1:
        raise UnsupportedModel(f"config.json: decoder_sparse_step={step!r} is no positive integer")
    return step


def _dense_layers(hf_config: dict[str, Any], num_layers: int) -> frozenset[int]:
    indices = hf_config.get("mlp_only_layers") or []
    if not isinstance(indices, list) or any(type(i) is not int or not 0 <= i < num_layers for i in indices):
        raise UnsupportedModel(f"config.json: mlp_only_layers={indices!r} is no list of layers, 0 to {num_layers - 1}")
    return frozenset(indices)
