"""Configurations that are possible, and the sentence that the others get."""

import importlib
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

import ops
from cluster.model_sizes import ARCHITECTURES, read_sizes
from cluster.model_tensors import needed_tensors, unused_tensors
from cluster.plan import HEAD_DIMS, make_plan
from engine.config import EngineConfig, ModelConfig
from engine.errors import InvalidConfig
from engine.worker.worker import Worker
from parallel.errors import InvalidSharding
from parallel.mesh import stage_layers
from parallel.models import MODELS, read

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"


def plan_of(folder: Path = DEMO, **arguments: object):
    return make_plan(EngineConfig.create(model=str(folder), **arguments))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copyfile(DEMO / name, tmp_path / name)
    return tmp_path


def edit(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_knows_the_architectures_that_there_are_models_for() -> None:
    assert set(ARCHITECTURES) == set(MODELS)


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
    model = Worker(EngineConfig.create(model=str(DEMO), quantization=quantization, ops_backend="cpu"))._model
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
        stages = [stage_layers(num_layers, rank, pp_size, decoder.head_layers) for rank in range(pp_size)]
        assert plan.cache_bytes_per_token == max(map(len, stages)) * 2 * 2 * 64 * 2  # as in the test above


def test_the_longest_sequence_is_what_a_given_cache_holds() -> None:
    assert plan_of(num_gpu_blocks_override=2).max_model_len == 16
    assert plan_of(num_gpu_blocks_override=2, max_model_len=16).max_model_len == 16
    assert plan_of(kv_cache_memory_bytes=64 << 20).max_model_len == 2048


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"tensor_parallel_size": 3},
            r"tensor_parallel_size=3 does not divide the model's 4 attention heads \(2 of keys and values\) "
            "and 768 MLP columns by 1, 2, 4 or 8; use 1, 2 or 4",
        ),
        ({"pipeline_parallel_size": 5}, "pipeline_parallel_size=5 exceeds the model's 4 layers; use 4 or less"),
        ({"max_model_len": 4096}, "max_model_len=4096 exceeds the model's 2048 positions; use 2048 or less"),
        ({"tokenizer": "/nowhere"}, "/nowhere/tokenizer.json does not exist"),
        ({"kv_cache_memory_bytes": 100}, "kv_cache_memory_bytes=100 holds no block"),
        (
            {"num_gpu_blocks_override": 2, "max_model_len": 17},
            "max_model_len=17 needs 3 blocks of the cache, and it has 2",
        ),
        (
            {"dtype": "float16", "device": "cpu"},
            "dtype=float16 is not computed on CPU; float32 or bfloat16 would work",
        ),
        (
            {"quantization": "fp8", "device": "cpu"},
            "quantization=fp8 is not computed on CPU; int8 or int4 would work",
        ),
    ],
)
def test_refuses_what_cannot_be(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        plan_of(**arguments)


@pytest.mark.parametrize(
    ("head_dim", "device", "whose"), [(96, "cuda", "triton"), (16, "cpu", "cpu"), (80, "auto", "cpu or triton")]
)
def test_refuses_heads_that_no_backend_takes(checkpoint: Path, head_dim: int, device: str, whose: str) -> None:
    edit(checkpoint, head_dim=head_dim)
    with pytest.raises(
        InvalidConfig, match=f"^head_dim={head_dim} is not computed by the {whose} backend; ops_backend=ref"
    ):
        plan_of(checkpoint, load_format="dummy", device=device)
    plan_of(checkpoint, load_format="dummy", device=device, ops_backend="reference")


def test_knows_the_heads_that_the_backends_take() -> None:
    pytest.importorskip("triton")
    assert {name: importlib.import_module(ops.MODULES[name]).HEAD_DIMS for name in HEAD_DIMS} == HEAD_DIMS


@pytest.mark.parametrize("num_heads", [1, 2, 4, 6, 12, 14, 16, 28, 40])
def test_takes_the_tensor_parallel_sizes_that_the_layers_take(checkpoint: Path, num_heads: int) -> None:
    for num_kv_heads, intermediate_size in product((1, 2, 4, 7, 8), (768, 4864, 100, 81)):
        if num_heads % num_kv_heads:
            continue
        edit(
            checkpoint,
            num_attention_heads=num_heads,
            num_key_value_heads=num_kv_heads,
            head_dim=64,
            intermediate_size=intermediate_size,
        )
        layers = read(json.loads((checkpoint / "config.json").read_text()))
        sizes = range(1, 18)
        expected = [size for size in sizes if not raises(InvalidSharding, partial(layers.check_sharding, size, 1))]
        plan_for = partial(plan_of, checkpoint, load_format="dummy")
        planned = [size for size in sizes if not raises(InvalidConfig, partial(plan_for, tensor_parallel_size=size))]
        assert planned == expected


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
def test_plans_other_architectures_as_the_layers_are(checkpoint: Path, experts: dict[str, object]) -> None:
    for intermediate_size in (768, 98):
        shared = {"shared_expert_intermediate_size": 160, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        edit(checkpoint, num_key_value_heads=1, head_dim=64, intermediate_size=intermediate_size, **(shared | experts))
        layers = read(json.loads((checkpoint / "config.json").read_text()))
        expected = [tp for tp in range(1, 18) if not raises(InvalidSharding, partial(layers.check_sharding, tp, 1))]
        plan_for = partial(plan_of, checkpoint, load_format="dummy")
        planned = [tp for tp in range(1, 18) if not raises(InvalidConfig, partial(plan_for, tensor_parallel_size=tp))]
        assert planned == expected
        shapes = [
            shape for name, shape in layers.shapes().items() if not re.search(r"bias|[qk]_norm|model\.norm", name)
        ]
        model = ModelConfig.load(str(checkpoint))
        assert needed_tensors(model, read_sizes(model, str(checkpoint))) == layers.shapes()
        assert plan_for(dtype="float32").weight_bytes == 4 * sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"num_experts": None}, r"config\.json: num_experts=None is not a positive integer"),
        ({"decoder_sparse_step": 0}, r"config\.json: decoder_sparse_step=0 is not a positive integer"),
        ({"mlp_only_layers": "all"}, r"config\.json: mlp_only_layers='all' is no list of layers"),
    ],
)
def test_refuses_experts_that_cannot_be(checkpoint: Path, field: dict[str, object], sentence: str) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    edit(checkpoint, architectures=["Qwen3MoeForCausalLM"], **(experts | field))
    with pytest.raises(InvalidConfig, match=sentence):
        plan_of(checkpoint)


def raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def test_the_checkpoints_dtype_counts_too(checkpoint: Path) -> None:
    edit(checkpoint, dtype="float16", torch_dtype="float16")
    with pytest.raises(InvalidConfig, match=r"dtype=float16 \(the checkpoint's\) is not computed on CPU"):
        plan_of(checkpoint, device="cpu")
    assert plan_of(checkpoint, device="cuda").weight_bytes > 0


def test_refuses_a_config_without_mlp(checkpoint: Path) -> None:
    edit(checkpoint, intermediate_size=None)
    with pytest.raises(InvalidConfig, match=r"config\.json: intermediate_size=None is not a positive integer"):
        plan_of(checkpoint)


def test_refuses_other_architectures(checkpoint: Path) -> None:
    edit(checkpoint, architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidConfig, match="LlamaForCausalLM is not served; Qwen2ForCausalLM, "):
        plan_of(checkpoint)


def test_refuses_missing_weights_unless_they_are_dummies(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InvalidConfig, match=r"model.safetensors does not exist, nor does model.safetensors.index.json"):
        plan_of(checkpoint)
    assert plan_of(checkpoint, load_format="dummy").weight_bytes > 0
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x-1", "b": "x-2"}}))
    with pytest.raises(InvalidConfig, match=r"x-1 does not exist \(2 of 2 weight files are missing\)"):
        plan_of(checkpoint)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"head_dim": 32}, {"attention_bias": False}, {"num_hidden_layers": 9}])
def test_expects_the_tensors_that_the_layers_read(checkpoint: Path, changes: dict[str, object], is_tied: bool) -> None:
    edit(checkpoint, tie_word_embeddings=is_tied, **changes)
    model = ModelConfig.load(str(checkpoint))
    assert needed_tensors(model, read_sizes(model, str(checkpoint))) == read(model.hf_config).shapes()
    assert ("lm_head.weight" in unused_tensors(model)) == is_tied
