"""config.json and generation_config.json of models that people have, with the fields that their
publishers' tools write, and the packer of each one's weights.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.parallel.published.packers import Format, float8, float8_blocks, gptq, int8, packed
from tests.parallel.published.packers import awq as pack_awq

Fields = dict[str, Any]

QWEN25: Fields = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
IN_FLOAT16 = QWEN25 | {"torch_dtype": "float16"}
QWEN3: Fields = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
}
# As transformers 5 writes the same model.
SAVED_ANEW = {key: value for key, value in QWEN25.items() if key not in ("rope_theta", "torch_dtype")} | {
    "dtype": "bfloat16",
    "layer_types": ["full_attention"] * 28,
    "pad_token_id": None,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": None,
    "transformers_version": "5.23.0",
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
LONG: Fields = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
QWEN25_1M = QWEN25 | {
    "dual_chunk_attention_config": LONG,
    "max_position_embeddings": 1010000,
    "rope_theta": 10000000.0,
    "sliding_window": 1010000,
}

AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ = {
    "batch_size": 1,
    "bits": 4,
    "block_name_to_quantize": None,
    "cache_block_outputs": True,
    "damp_percent": 0.01,
    "dataset": None,
    "desc_act": False,
    "exllama_config": {"version": 1},
    "group_size": 128,
    "max_input_length": None,
    "model_seqlen": None,
    "module_name_preceding_first_block": None,
    "modules_in_block_to_quantize": None,
    "pad_token_id": None,
    "quant_method": "gptq",
    "sym": True,
    "tokenizer": None,
    "true_sequential": True,
    "use_cuda_fp16": False,
    "use_exllama": True,
}
BY_GPTQMODEL = {
    "bits": 4,
    "checkpoint_format": "gptq",
    "desc_act": False,
    "dynamic": {"-:.*mlp[.]gate$": {}, "-:model[.]layers[.]0[.]self_attn[.]o_proj": {}},
    "group_size": 128,
    "hyb_act": False,
    "lm_head": False,
    "meta": {"damp_percent": 0.05, "mse": 0.0, "quantizer": ["gptqmodel:2.2.0"], "uri": "https://github.com"},
    "pack_dtype": "int32",
    "quant_method": "gptq",
    "sym": True,
}
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
NOT_CONVERTED = ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate", "model.norm"]
BITSANDBYTES = {
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_type": "nf4",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "quant_method": "bitsandbytes",
}


def compressed(form: str, weights: Fields, inputs: Fields | None) -> Fields:
    """As llm-compressor writes it."""
    each = {
        **{"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "observer_kwargs": {}},
        **{"scale_dtype": None, "zp_dtype": None, "symmetric": True},
    }
    group = {
        "format": form,
        "input_activations": None if inputs is None else each | {"observer": None, "dynamic": True} | inputs,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": each | {"observer": "minmax"} | weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.3",
    }


W8A8 = compressed(
    "int-quantized",
    {"num_bits": 8, "strategy": "channel", "type": "int"},
    {"num_bits": 8, "strategy": "token", "type": "int"},
)
W4A16 = compressed(
    "pack-quantized", {"num_bits": 4, "strategy": "group", "type": "int", "group_size": 128, "actorder": "weight"}, None
)
FP8_DYNAMIC = compressed(
    "float-quantized",
    {"num_bits": 8, "strategy": "channel", "type": "float"},
    {"num_bits": 8, "strategy": "token", "type": "float"},
)

INSTRUCT: Fields = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}
BASE: Fields = {
    "bos_token_id": 151643,
    "do_sample": False,
    "eos_token_id": 151643,
    "max_new_tokens": 2048,
    "transformers_version": "4.37.0",
}
THINKING = {key: value for key, value in INSTRUCT.items() if key != "repetition_penalty"} | {
    "temperature": 0.6,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


@dataclass(frozen=True)
class Model:
    config: Fields
    generation: Fields = field(default_factory=lambda: INSTRUCT)
    quantization: Fields | None = None
    form: Format | None = None  # whose packer is of this quantization
    ranks: tuple[int, ...] = (1, 2, 4)  # that it can be cut into
    context: int = 32768

    @property
    def hf_config(self) -> Fields:
        return self.config | ({} if self.quantization is None else {"quantization_config": self.quantization})


OF_QWEN3 = {"generation": THINKING, "ranks": (1, 2, 4, 8), "context": 40960}
GPTQ_PACKER = gptq(4, has_order=False, is_symmetric=True)
MODELS = {
    "Qwen2.5-7B": Model(QWEN25, BASE),
    "Qwen2.5-7B-Instruct": Model(QWEN25),
    "Qwen2.5-7B-Instruct, saved by transformers 5": Model(SAVED_ANEW),
    "Qwen2.5-7B-Instruct, YaRN as its card says": Model(QWEN25 | {"rope_scaling": YARN}, context=131072),
    "Qwen2.5-7B-Instruct-AWQ": Model(IN_FLOAT16, INSTRUCT, AWQ, pack_awq()),
    "Qwen2.5-7B-Instruct-GPTQ-Int4": Model(IN_FLOAT16, INSTRUCT, GPTQ, GPTQ_PACKER),
    "Qwen2.5-7B-Instruct-GPTQ-Int8": Model(
        IN_FLOAT16, INSTRUCT, GPTQ | {"bits": 8}, gptq(8, has_order=False, is_symmetric=True)
    ),
    "Qwen2.5-7B-Instruct-quantized.w8a8": Model(QWEN25, INSTRUCT, W8A8, int8(None)),
    "Qwen2.5-7B-Instruct-quantized.w4a16": Model(QWEN25, INSTRUCT, W4A16, packed(4, size=128, is_symmetric=True)),
    "Qwen2.5-7B-Instruct-FP8-dynamic": Model(QWEN25, INSTRUCT, FP8_DYNAMIC, float8("channel")),
    "Qwen3-8B": Model(QWEN3, **OF_QWEN3),
    "Qwen3-8B-AWQ": Model(QWEN3 | {"torch_dtype": "float16"}, quantization=AWQ, form=pack_awq(), **OF_QWEN3),
    "Qwen3-8B-FP8": Model(QWEN3, quantization=FP8, form=float8_blocks(), **OF_QWEN3),
    "Qwen3-8B, by GPTQModel": Model(QWEN3, quantization=BY_GPTQMODEL, form=GPTQ_PACKER, **OF_QWEN3),
    "Qwen3-30B-A3B": Model(QWEN3_MOE, **OF_QWEN3),
    "Qwen3-30B-A3B-FP8": Model(
        QWEN3_MOE, quantization=FP8 | {"modules_to_not_convert": NOT_CONVERTED}, form=float8_blocks(), **OF_QWEN3
    ),
    "Qwen3-30B-A3B, by GPTQModel": Model(QWEN3_MOE, quantization=BY_GPTQMODEL, form=GPTQ_PACKER, **OF_QWEN3),
}
REFUSED = {
    "Qwen2.5-7B-Instruct-1M": (QWEN25_1M, "dual_chunk_attention_config .* 262144 tokens"),
    "Qwen2.5-7B-Instruct-bnb-4bit": (QWEN25 | {"quantization_config": BITSANDBYTES}, "quantized by bitsandbytes"),
    "a mixture of bits by GPTQModel": (
        QWEN25 | {"quantization_config": BY_GPTQMODEL | {"dynamic": {"+:.*down_proj": {"bits": 8}}}},
        r"quantization_config.dynamic='\+:\.\*down_proj'",
    ),
    "AutoRound": (QWEN3 | {"quantization_config": {"quant_method": "auto-round", "bits": 4}}, "packing_format=None"),
}
