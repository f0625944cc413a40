"""The engine on random weights of the 0.5B shape, in this process: many requests at once, and one
alone.

The many are those of nano-vllm's benchmark: 256 requests of 100 to 1,024 tokens in and out, seed 0.
"""

import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.engine.support.arrivals import add_request

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"
SHAPE = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
}
QUICK_SHAPE = {**SHAPE, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
QUICK_SHAPE["vocab_size"] = 10_240
COMMON = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "eos_token_id": 0,
}
NUM_REQUESTS, LONGEST = 256, 1024


def requests(count: int, longest: int, seed: int = 0) -> list[tuple[list[int], SamplingParams]]:
    """In the order in which nano-vllm's benchmark draws them: all prompts, then all output
    lengths.
    """
    draw = random.Random(seed)
    shortest = min(100, longest)
    prompts = [[draw.randint(0, 10_000) for _ in range(draw.randint(shortest, longest))] for _ in range(count)]
    lengths = [draw.randint(shortest, longest) for _ in range(count)]
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length) for length in lengths]
    return list(zip(prompts, params, strict=True))


def measure_engine(device: str, *, exact: bool, quick: bool) -> dict[str, Any]:
    """Output tokens a second of all at once, and milliseconds a token of one alone, behind its
    first.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(DEMO / name, Path(folder) / name)
        (Path(folder) / "config.json").write_text(
            json.dumps(COMMON | (QUICK_SHAPE if quick else SHAPE)), encoding="utf-8"
        )
        config = EngineConfig.create(
            model=folder,
            load_format="dummy",
            device=device,
            exact=exact,
            max_model_len=4096,
            max_num_batched_tokens=8192,
        )
        executor = LocalExecutor(config)
        engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
        count, longest = (4, 12) if quick else (NUM_REQUESTS, LONGEST)
        try:
            engine.start()
            _run(engine, requests(count, longest, seed=1))  # what is compiled and captured once
            many = requests(count, longest)
            seconds, _, num_tokens = _run(engine, many)
            alone = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8 if quick else 256)
            _run(engine, [(list(range(100)), alone)])  # if a graph of one row is still to be captured, then here
            latency, first, num_alone = _run(engine, [(list(range(100)), alone)])
        finally:
            executor.shutdown()
    return {
        "exact": exact,
        "requests": len(many),
        "output_tokens": num_tokens,
        "seconds": seconds,
        "output_tok_per_s": num_tokens / seconds,
        "batch_1_first_ms": 1e3 * first,
        "batch_1_ms_a_token": 1e3 * (latency - first) / (num_alone - 1),
        "batch_1_bytes_a_token": 2 * _num_weights(QUICK_SHAPE if quick else SHAPE),
    }


def _num_weights(shape: dict[str, int]) -> int:
    """What a step reads of them: all, the tied embedding as the head."""
    hidden, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    attention = 2 * hidden * hidden * (heads + kv_heads) // heads
    layer = attention + 3 * hidden * shape["intermediate_size"]
    return shape["num_hidden_layers"] * layer + shape["vocab_size"] * hidden


def _run(engine: LLMEngine, todo: list[tuple[list[int], SamplingParams]]) -> tuple[float, float, int]:
    """Seconds, those to the first token, and tokens given out."""
    num_tokens = 0
    first = 0.0
    started = time.perf_counter()
    for number, (prompt, params) in enumerate(todo):
        add_request(engine, str(number), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.error is None, output.error
            num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
            first = first or time.perf_counter() - started
    return time.perf_counter() - started, first, num_tokens
