"""Configurations that are possible, and the sentence that the others get."""

import importlib
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

import ops
from cluster.checkpoint.plan import HEAD_DIMS, make_plan
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.worker import Worker
from parallel.spec import read

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


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
    ("arguments", "sentence"),
    [
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size=3 does not divide 4 attention heads, 768 MLP columns and 2 key-value heads evenly; "
            "this model can be cut into 1, 2 or 4 ranks",
        ),
        ({"pipeline_parallel_size": 5}, "pipeline_parallel_size=5 exceeds the model's 4 layers; use 1 to 4"),
        ({"max_model_len": 4096}, "max_model_len=4096 exceeds the model's 2048 positions; use 2048 or less"),
        ({"tokenizer": "/nowhere"}, "/nowhere/tokenizer.json does not exist"),
        (
            {"kv_cache_memory_bytes": 100},
            r"max_model_len=2048 \(the model's\) needs 129 blocks of the cache, and it has 0; "
            "set kv_cache_memory_bytes to 4227072 or more",
        ),
        (
            {"num_gpu_blocks_override": 26},
            r"max_model_len=2048 \(the model's\) needs 129 blocks of the cache, and it has 26; "
            "set max_model_len to 400 or less, or num_gpu_blocks_override to 129 or more",
        ),
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


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"num_experts": None}, r"config\.json: num_experts=None must be given as positive integers"),
        ({"decoder_sparse_step": 0}, r"config\.json: decoder_sparse_step=0 is no positive integer"),
        ({"mlp_only_layers": "all"}, r"config\.json: mlp_only_layers='all' is no list of layers"),
    ],
)
def test_refuses_experts_that_cannot_be(checkpoint: Path, field: dict[str, object], sentence: str) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    edit(checkpoint, architectures=["Qwen3MoeForCausalLM"], **(experts | field))
    with pytest.raises(InvalidConfig, match=sentence):
        plan_of(checkpoint)


def test_the_checkpoints_dtype_counts_too(checkpoint: Path) -> None:
    edit(checkpoint, dtype="float16", torch_dtype="float16")
    with pytest.raises(InvalidConfig, match=r"dtype=float16 \(the checkpoint's\) is not computed on CPU"):
        plan_of(checkpoint, device="cpu")
    assert plan_of(checkpoint, device="cuda").weight_bytes > 0


def test_refuses_a_config_without_mlp(checkpoint: Path) -> None:
    edit(checkpoint, intermediate_size=None)
    with pytest.raises(InvalidConfig, match=r"config\.json: intermediate_size=None must be given as positive integers"):
        plan_of(checkpoint)


def test_refuses_other_architectures(checkpoint: Path) -> None:
    edit(checkpoint, architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidConfig, match="architecture LlamaForCausalLM; there is Qwen2ForCausalLM, "):
        plan_of(checkpoint)


def test_refuses_missing_weights_unless_they_are_dummies(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InvalidConfig, match=r"model.safetensors does not exist, nor does model.safetensors.index.json"):
        plan_of(checkpoint)
    assert plan_of(checkpoint, load_format="dummy").weight_bytes > 0
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x-1", "b": "x-2"}}))
    with pytest.raises(InvalidConfig, match=r"x-1 does not exist \(2 of 2 weight files are missing\)"):
        plan_of(checkpoint)


def test_a_chat_template_that_does_not_parse_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(InvalidConfig, match=r"chat_template\.jinja is no chat template: line 1"):
        plan_of(checkpoint)


def test_refuses_quantized_checkpoints(checkpoint: Path) -> None:
    edit(checkpoint, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(
        InvalidConfig, match=r"is quantized already \(config\.json: quantization_config, by awq\).*=int4 or"
    ):
        plan_of(checkpoint)


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_the_context_is_yarns_where_it_is_asked_for(checkpoint: Path, field: str, kind: str) -> None:
    rope = {"factor": 4.0, "original_max_position_embeddings": 2048, kind: "yarn"}
    edit(checkpoint, **{"rope_scaling": None, "rope_parameters": None, field: rope})
    assert plan_of(checkpoint).max_model_len == 8192
    model = ModelConfig.load(str(checkpoint))
    assert model.max_positions == read(model.hf_config).max_positions == 8192
    with pytest.raises(InvalidConfig, match="max_model_len=8193 exceeds the model's 8192 positions"):
        plan_of(checkpoint, max_model_len=8193)
