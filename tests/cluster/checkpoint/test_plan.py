"""Configurations that are possible, and the sentence that the others get."""

import importlib
import json
import shutil
from pathlib import Path

import pytest

import ops
from cluster.checkpoint.plan import HEAD_DIMS, make_plan
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from parallel.spec import read
from tests.cluster.checkpoint.damaged import edit
from tests.parallel.published.packers import int8

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


def plan_of(folder: Path = DEMO, **arguments: object):
    return make_plan(EngineConfig.create(model=str(folder), **arguments))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copyfile(DEMO / name, tmp_path / name)
    return tmp_path


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
            r"dtype=float16 is not computed on CPU; --dtype bfloat16 \(dtype: bfloat16\) or float32 would work",
        ),
        (
            {"quantization": "fp8", "device": "cpu"},
            "quantization=fp8 is not computed on CPU; int8 or int4 would work",
        ),
        (
            {"ops_backend": "triton", "device": "cpu"},
            "ops_backend=triton is for GPUs, not for device=cpu; auto would work",
        ),
        (
            {"ops_backend": "cpu", "device": "cuda"},
            "ops_backend=cpu is for CPUs, not for device=cuda; auto would work",
        ),
        (
            {"kv_cache_dtype": "fp8_e4m3", "ops_backend": "reference"},
            "kv_cache_dtype=fp8_e4m3 is for GPUs and their kernels, not for ops_backend=reference; auto would work",
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


def test_sampling_defaults_that_cannot_be_are_refused(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text('{"top_p": 0.0}')
    with pytest.raises(InvalidConfig, match=r"generation_config\.json: top_p must be above 0\.0, got 0\.0"):
        make_plan(EngineConfig.create(model=str(checkpoint)))
    make_plan(EngineConfig.create(model=str(checkpoint), generation_config="vllm"))


def test_a_chat_template_that_does_not_parse_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(InvalidConfig, match=r"chat_template\.jinja is no chat template: line 1"):
        plan_of(checkpoint)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4"}, r"is quantized already \(awq 4-bit\); leave out quantization=int4"),
        ({"load_format": "dummy"}, "load_format=dummy makes no awq 4-bit weights"),
        ({}, "_proj.weight is not quantized, but by config.json's quantization_config it is"),
    ],
)
def test_what_a_quantized_checkpoint_cannot_be(checkpoint: Path, options: dict[str, object], message: str) -> None:
    edit(checkpoint, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(InvalidConfig, match=message):
        plan_of(checkpoint, **options)


def test_a_model_whose_inputs_are_rounded_has_no_adapters(checkpoint: Path) -> None:
    edit(checkpoint, quantization_config=int8(None).config)
    with pytest.raises(
        InvalidConfig, match=r"enable_lora: adapters .* 8-bit \(inputs too\) are not .* leave it out, or"
    ):
        plan_of(checkpoint, enable_lora=True)


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
