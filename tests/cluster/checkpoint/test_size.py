"""What a rank holds, in bytes, against files and workers."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

import ops
from cluster.checkpoint.size import Plan, size_up
from engine.config import EngineConfig
from engine.worker.worker import Worker
from parallel.spec import read
from tests.cluster.checkpoint.damaged import edit

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


def plan_of(folder: Path = DEMO, **arguments: object) -> Plan:
    return size_up(EngineConfig.create(model=str(folder), **arguments))


def test_weights_are_those_of_the_file() -> None:
    size = (DEMO / "model.safetensors").stat().st_size
    assert 0.98 < plan_of().weight_bytes / size < 1.0  # the header and the biases apart


@pytest.mark.parametrize(("quantization", "least", "most"), [("int8", 0.515, 0.53), ("int4", 0.27, 0.30)])
def test_quantized_weights_take_what_their_codes_and_scales_take(quantization: str, least: float, most: float) -> None:
    quantized = plan_of(quantization=quantization)
    assert least < quantized.weight_bytes / plan_of().weight_bytes < most
    assert quantized.cache_bytes_per_token == plan_of().cache_bytes_per_token


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_bytes_of_quantized_weights_are_those_that_a_worker_holds(quantization: str) -> None:
    if (reason := ops.unavailable_reason("cpu", torch.device("cpu"))) is not None:
        pytest.skip(reason)
    model = Worker(EngineConfig.create(model=str(DEMO), quantization=quantization, ops_backend="cpu"))._shard.model
    linears = [
        linear for layer in model.layers for linear in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    ]
    held = sum(layer.weight.data.numel() for layer in (*linears, model.head))
    assert model.head.weight is model.embedding.weight
    assert 0.98 < held / plan_of(quantization=quantization).weight_bytes < 1.0  # norms and biases apart


def test_the_cache_shrinks_with_both_degrees_until_heads_are_replicated() -> None:
    alone = plan_of().cache_bytes_per_token
    assert alone == 2 * 4 * 2 * 64 * 2  # keys and values, layers, heads, width, bytes
    assert plan_of(tensor_parallel_size=2).cache_bytes_per_token == alone // 2
    assert plan_of(tensor_parallel_size=4).cache_bytes_per_token == alone // 2
    assert plan_of(tensor_parallel_size=2, pipeline_parallel_size=2).cache_bytes_per_token == alone // 4


@pytest.mark.parametrize("num_layers", [4, 7, 24])
@pytest.mark.parametrize("vocab_size", [1024, 200_000])
def test_the_stage_with_the_most_layers_is_planned_for(checkpoint: Path, num_layers: int, vocab_size: int) -> None:
    edit(checkpoint, num_hidden_layers=num_layers, vocab_size=vocab_size)
    decoder = read(json.loads((checkpoint / "config.json").read_text()))
    for pp_size in (1, 2, 3, 4):
        plan = plan_of(checkpoint, pipeline_parallel_size=pp_size, load_format="dummy")
        assert (
            plan.cache_bytes_per_token == max(map(len, decoder.stages(pp_size))) * 2 * 2 * 64 * 2
        )  # as in the test above


def test_the_longest_sequence_does_not_depend_on_the_cache() -> None:
    assert plan_of(num_gpu_blocks_override=2, max_model_len=16).max_model_len == 16
    assert plan_of(kv_cache_memory_bytes=64 << 20).max_model_len == 2048


def test_the_default_cache_holds_the_longest_sequence(checkpoint: Path) -> None:
    assert plan_of(checkpoint).cache_bytes == 1 << 30
    edit(checkpoint, max_position_embeddings=1 << 21)
    plan = plan_of(checkpoint)
    assert plan.max_model_len == 1 << 21
    assert plan.cache_bytes == plan.cache_bytes_per_token * ((1 << 21) + 16)  # and the null block
    assert plan_of(checkpoint, max_model_len=1 << 18).cache_bytes == 1 << 30


@pytest.mark.parametrize(
    "experts",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 12},
        {"architectures": ["Qwen3MoeForCausalLM"], "num_local_experts": 16, "decoder_sparse_step": 2},
        {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 16, "shared_expert_intermediate_size": 84},
        {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 16, "mlp_only_layers": [1, 2]},
    ],
)
def test_plans_the_weights_of_other_architectures(checkpoint: Path, experts: dict[str, object]) -> None:
    shared = {"shared_expert_intermediate_size": 160, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    edit(checkpoint, num_key_value_heads=1, head_dim=64, **(shared | experts))
    shapes = read(json.loads((checkpoint / "config.json").read_text())).shapes()
    counted = [math.prod(shape) for name, shape in shapes.items() if not re.search(r"bias|[qk]_norm|model\.norm", name)]
    assert plan_of(checkpoint, load_format="dummy", dtype="float32").weight_bytes == 4 * sum(counted)
