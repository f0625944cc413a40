"""The engine on the Triton kernels, from requests to logprobs: the same bits in chunks, alone, and
beside others.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
import ops
from engine.core.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.support.demo import answers, demo_engine, every_bit
from tests.engine.worker.tiny import VOCAB_SIZE, hf_config
from tests.ops.kernels.where import DEVICE, IS_INTERPRETED, MARKS, slow

pytestmark = MARKS
LENGTH = 2 if IS_INTERPRETED else 3
REQUESTS = [
    ([5, 6, 7], SamplingParams(temperature=1.3, top_p=0.9, seed=1, max_tokens=LENGTH, logprobs=1, ignore_eos=True)),
    (
        list(range(40, 57)),
        SamplingParams(temperature=0.8, top_k=30, seed=2, n=2, max_tokens=LENGTH, ignore_eos=True),
    ),
    (
        [7 + 3 * k for k in range(19)],
        SamplingParams(temperature=0.0, max_tokens=LENGTH, logprobs=2, ignore_eos=True),
    ),
][: 2 if IS_INTERPRETED else 3]


@contextmanager
def engine_on(folder: Path, **changes: object) -> Iterator[LLMEngine]:
    kernels = {"ops_backend": "triton", "dtype": "auto", "device": DEVICE.type, "load_format": "dummy"}
    with demo_engine(model=str(folder), num_gpu_blocks_override=32, swap_space=0, **kernels, **changes) as engine:
        yield engine


@slow  # else: test_steps.py and test_adapters.py here
@pytest.mark.parametrize(("head_dim", "kv_cache_dtype"), [(64, "auto"), (128, "fp8_e4m3")])
def test_requests_have_one_answer(
    head_dim: int, kv_cache_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_INTERPRETED:
        monkeypatch.delitem(ops.DEVICES, "triton")  # the interpreter's tensors are on the CPU
    (tmp_path / "config.json").write_text(json.dumps(hf_config(head_dim, VOCAB_SIZE)), encoding="utf-8")
    with engine_on(tmp_path, kv_cache_dtype=kv_cache_dtype) as engine:
        together = [every_bit(answer) for answer in answers(engine, REQUESTS)]
        alone = every_bit(answers(engine, REQUESTS[:1])[0])
    assert alone == together[0]
    with engine_on(tmp_path, kv_cache_dtype=kv_cache_dtype, long_prefill_token_threshold=9) as engine:
        assert [every_bit(answer) for answer in answers(engine, REQUESTS)] == together
