"""llama.cpp beside us, where its Python package is installed: `pip install llama-cpp-python gguf`,
which compiles it.

It gets the same weights in bfloat16, as a GGUF file without a tokenizer, kept beside the checkpoint
it was made from, or what its own quantizer makes of that file: of all matrices, as the files that
people have, or of all but embeddings and head, which published checkpoints leave as they are.
"""

import importlib.util
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from cluster.bench.workload import Work
from engine.checkpoint.model_config import ModelConfig
from parallel.spec import read
from tests.benchmarks.peers import Times

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FILE_TYPES = {"Q4_0": 2, "Q8_0": 7}  # llama_ftype, in llama.h
BFLOAT16 = 30  # ggml_type, in ggml.h
MAX_BATCH_TOKENS, MAX_TOKENS_AT_ONCE = 2048, 512  # its own defaults: n_batch, n_ubatch


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("llama_cpp", "gguf"))


class LlamaCpp(AbstractContextManager["LlamaCpp"]):
    """A context for all sequences of a run, made anew for each run, before its clock starts."""

    def __init__(self, folder: str, quantization: str | None = None, *, layers_only: bool = False) -> None:
        self._library: Any = importlib.import_module("llama_cpp")
        self._quiet = self._library.llama_log_callback(lambda *_: None)  # kept, since it is called
        self._library.llama_log_set(self._quiet, None)
        self._library.llama_backend_init()
        path = self._gguf(Path(folder), quantization, layers_only=layers_only)
        self._model = self._library.llama_model_load_from_file(
            str(path).encode(), self._library.llama_model_default_params()
        )
        assert self._model, f"llama.cpp does not load {path}"
        self._vocab_size = ModelConfig.load(folder).vocab_size

    def __exit__(self, *_: object) -> None:
        self._library.llama_model_free(self._model)

    def run(self, works: Sequence[Work]) -> Times:
        prompts = [np.asarray(work.prompt) for work in works]
        (output_len,) = {work.output_len for work in works}
        context = self._make_context(len(works), sum(len(prompt) + output_len for prompt in prompts))
        started = time.perf_counter()
        tokens = np.empty(len(works), np.int32)
        rows = [
            (sequence, position, token, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for begin in range(0, len(rows), MAX_BATCH_TOKENS):
            self._decode(context, rows[begin : begin + MAX_BATCH_TOKENS], tokens)
        first = time.perf_counter() - started
        for past in range(output_len - 1):
            step = [(sequence, len(prompt) + past, tokens[sequence], True) for sequence, prompt in enumerate(prompts)]
            self._decode(context, step, tokens)
        last = time.perf_counter() - started
        self._library.llama_free(context)
        return Times(first, last)

    def _gguf(self, folder: Path, quantization: str | None, *, layers_only: bool) -> Path:
        """The checkpoint as one of its files; made once and kept."""
        plain = folder / "bfloat16.gguf"
        if not plain.exists():
            write_gguf(str(folder), plain)
        if quantization is None:
            return plain
        path = folder / f"{quantization}{'-layers' if layers_only else ''}.gguf"
        if not path.exists():
            params = self._library.llama_model_quantize_default_params()
            params.ftype = FILE_TYPES[quantization]
            if layers_only:
                params.token_embedding_type = params.output_tensor_type = BFLOAT16
            unfinished = path.with_suffix(".part")
            failed = self._library.llama_model_quantize(str(plain).encode(), str(unfinished).encode(), params)
            assert not failed, f"llama.cpp does not quantize {plain}"
            os.replace(unfinished, path)
        return path

    def _make_context(self, num_sequences: int, num_tokens: int) -> Any:
        params = self._library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = num_tokens + 256 * num_sequences, num_sequences
        params.n_batch, params.n_ubatch = MAX_BATCH_TOKENS, MAX_TOKENS_AT_ONCE
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        params.kv_unified = True
        return self._library.llama_init_from_model(self._model, params)

    def _decode(self, context: Any, rows: list[tuple[int, int, int, bool]], tokens: np.ndarray) -> None:
        """Compute (sequence, position, token, is sampled) and write the most likely next token of
        each sampled sequence.
        """
        library = self._library
        batch = library.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, (sequence, position, token, is_sampled) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = int(token), position, is_sampled
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        assert library.llama_decode(context, batch) == 0
        for index, (sequence, _, _, is_sampled) in enumerate(rows):
            if is_sampled:
                logits = np.ctypeslib.as_array(library.llama_get_logits_ith(context, index), (self._vocab_size,))
                tokens[sequence] = logits.argmax()
        library.llama_batch_free(batch)


def write_gguf(folder: str, path: Path) -> None:
    """Matrices in bfloat16, norms and biases in float32, as llama.cpp's own converter has them."""
    gguf: Any = importlib.import_module("gguf")
    model = ModelConfig.load(folder)
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "qwen2")
    writer.add_block_count(model.num_hidden_layers)
    writer.add_context_length(model.hf_config["max_position_embeddings"])
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.hf_config["intermediate_size"])
    writer.add_head_count(model.num_attention_heads)
    writer.add_head_count_kv(model.num_key_value_heads)
    writer.add_layer_norm_rms_eps(model.hf_config["rms_norm_eps"])
    writer.add_rope_freq_base(read(model.hf_config).rope.theta)
    writer.add_vocab_size(model.vocab_size)
    writer.add_tokenizer_model("none")
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name)
                if tensor.ndim == 1:
                    writer.add_tensor(gguf_name(name), tensor.float().numpy())
                else:
                    bits = tensor.bfloat16().view(torch.uint8).numpy()
                    writer.add_tensor(gguf_name(name), bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{NAMES[part]}.{kind}"
