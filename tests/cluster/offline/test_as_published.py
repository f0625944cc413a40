"""Models that people have: their files are read as transformers reads them, and small copies of
them answer with its tokens; what is not computed is refused by name.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from cluster.llm import LLM
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from parallel.errors import InvalidSharding, UnsupportedModel
from parallel.spec import read
from tests.corruptions import copy_demo
from tests.parallel.published.as_published import MODELS, REFUSED, Model
from tests.parallel.published.publish import WEIGHTS

SMALL = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 64},
    **{"num_key_value_heads": 2, "vocab_size": 768, "bos_token_id": 766, "eos_token_id": 767},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
PROMPT = [{"role": "user", "content": "What is 17 + 25?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def small(model: Model) -> dict[str, Any]:
    """The same fields with other sizes, and with a field of layers for as many."""
    config = model.hf_config
    sizes = SMALL | (EXPERTS if "num_experts" in config else {})
    layers = {"layer_types": ["full_attention"]} if "layer_types" in config else {}
    return config | {key: value for key, value in sizes.items() if key in config} | layers


def write(folder: Path, model: Model) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A small copy, with the demo's tokenizer; its config.json, and the numbers of its weights."""
    copy_demo(folder)
    config = small(model)
    spec = read(config)
    torch.manual_seed(0)
    meant = {name: torch.randn(shape) / 10 for name, shape in spec.shapes().items()}
    meant |= {name: 1 + tensor for name, tensor in meant.items() if "norm" in name}
    stored = dict(meant)
    for name in meant:
        linear = name.removesuffix(".weight")
        if model.form is not None and spec.scheme is not None and spec.scheme.is_quantized(linear) and name != linear:
            parts, meant[name] = model.form.pack(stored.pop(name))
            packed = {f"{linear}.{part}": each.contiguous() for part, each in parts.items()}
            stored = packed | stored  # a packer's biases of zeros are for linears that have none
    save_file(stored, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(model.generation))
    return config, meant


def theirs(folder: Path, config: dict[str, Any], meant: dict[str, Tensor]) -> list[int]:
    """The tokens of transformers, in float32."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    module = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**plain), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if "num_experts" in config:
        meant = _fused(meant, config["num_experts"])
    module.load_state_dict(meant)
    text = transformers.AutoTokenizer.from_pretrained(folder)
    ids = text(text.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True))["input_ids"]
    answer = []
    with torch.inference_mode():
        for _ in range(4):
            answer.append(int(module(torch.tensor([ids + answer])).logits[0, -1].argmax()))
    return answer


def _fused(tensors: dict[str, Tensor], num_experts: int) -> dict[str, Tensor]:
    """Experts as transformers has them in memory: gate and up of all in one, down in another."""
    fused = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    of = [
        {part: tensors[f"model.layers.0.mlp.experts.{i}.{part}_proj.weight"] for part in ("gate", "up", "down")}
        for i in range(num_experts)
    ]
    fused["model.layers.0.mlp.experts.gate_up_proj"] = torch.stack([torch.cat([e["gate"], e["up"]]) for e in of])
    fused["model.layers.0.mlp.experts.down_proj"] = torch.stack([e["down"] for e in of])
    return fused


@pytest.mark.parametrize("name", MODELS)
def test_its_files_are_read_as_transformers_reads_them(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(model.hf_config))
    (tmp_path / "generation_config.json").write_text(json.dumps(model.generation))
    spec, ours = read(model.hf_config), ModelConfig.load(str(tmp_path))
    for size in (1, 2, 3, 4, 8):
        if size in model.ranks:
            spec.check_sharding(size, 1)
        else:
            with pytest.raises(InvalidSharding):
                spec.check_sharding(size, 1)
    assert spec.max_positions == ours.max_positions == model.context
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.rope_parameters["rope_theta"] == spec.rope.theta
    generation = transformers.GenerationConfig.from_pretrained(tmp_path)
    ends = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
    assert ours.eos_token_ids == tuple(ends)
    defaults = ours.sampling_defaults(EngineConfig.create(model=str(tmp_path)))
    assert defaults == {key: getattr(generation, key) for key in defaults}
    assert set(defaults) == {"temperature", "top_k", "top_p", "repetition_penalty"} & model.generation.keys()


# Formats whose arithmetic others have, too; they are read in tests/parallel/published.
OTHER_FORMATS = (
    "Qwen2.5-7B-Instruct, saved by transformers 5",
    "Qwen2.5-7B-Instruct-FP8-dynamic",
    "Qwen2.5-7B-Instruct-GPTQ-Int8",
    "Qwen2.5-7B-Instruct-quantized.w4a16",
    "Qwen3-30B-A3B, by GPTQModel",
    "Qwen3-8B-AWQ",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in OTHER_FORMATS)) for name in MODELS]
)
def test_a_small_copy_answers_with_their_tokens(name: str, tmp_path: Path) -> None:
    config, meant = write(tmp_path / "model", MODELS[name])
    options: dict[str, Any] = {"device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 8 << 20}
    with LLM(model=str(tmp_path / "model"), dtype="float32", max_model_len=256, **options) as llm:
        (output,) = llm.chat(PROMPT, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == theirs(tmp_path / "model", config, meant)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name: str) -> None:
    config, said = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=said):
        read(config)
