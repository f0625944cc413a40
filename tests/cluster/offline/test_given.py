"""Adapters of offline batches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.llm import LLM, LoRARequest
from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from tests.adapters import demo_shapes, save_adapter
from tests.engine.support.workloads import DEMO

ENGINE = {"model": DEMO, "device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 16 << 20}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "The seven lanterns"


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> LoRARequest:
    return LoRARequest("harbour", 1, save_adapter(tmp_path_factory.mktemp("harbour"), demo_shapes(), rank=8).folder)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**ENGINE, enable_lora=True, max_lora_rank=8) as llm:
        yield llm


def texts(llm: LLM, count: int, lora_request: LoRARequest | list[LoRARequest | None] | None) -> list[str]:
    outputs = llm.generate([PROMPT] * count, GREEDY, use_tqdm=False, lora_request=lora_request)
    return [output.outputs[0].text for output in outputs]


def test_for_all_or_one_for_each(llm: LLM, harbour: LoRARequest) -> None:
    (plain,), (adapted,) = texts(llm, 1, None), texts(llm, 1, harbour)
    assert plain != adapted
    assert texts(llm, 3, [None, harbour, None]) == [plain, adapted, plain]
    message = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    chats = [llm.chat(message, params, use_tqdm=False, lora_request=each)[0] for each in (None, harbour)]
    assert chats[0].outputs[0].cumulative_logprob != chats[1].outputs[0].cumulative_logprob


def test_what_cannot_be_is_refused(llm: LLM, harbour: LoRARequest, tmp_path: Path) -> None:
    large = LoRARequest("large", 2, save_adapter(tmp_path / "large", demo_shapes(), rank=16).folder)
    with pytest.raises(InvalidRequest, match="adapter large has rank 16, and max_lora_rank is 8"):
        texts(llm, 1, large)
    with pytest.raises(InvalidRequest, match=r"adapter lost: .*adapter_model\.safetensors.* No such file"):
        texts(llm, 1, LoRARequest("lost", 3, str(tmp_path / "lost")))
    with pytest.raises(InvalidRequest, match="1 lora_request for 2 prompts"):
        texts(llm, 2, [harbour])
    assert texts(llm, 1, harbour)


def test_without_the_switch(harbour: LoRARequest) -> None:
    with LLM(**ENGINE) as llm, pytest.raises(InvalidRequest, match="lora_request are given, and enable_lora is not"):
        texts(llm, 1, harbour)
