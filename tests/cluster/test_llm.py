"""Offline batches in this process: whole answers, in the order of the prompts."""

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cluster.llm import LLM
from engine.errors import EngineDead, InvalidConfig, InvalidRequest
from engine.sampling_params import SamplingParams
from tests.corruptions import WEIGHTS, copy_demo
from tests.engine.support.judge import save_judge

DEMO = str(Path(__file__).resolve().parents[2] / "configs" / "demo")
GREEDY_CHAT = SamplingParams(temperature=0, max_tokens=12)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(model=DEMO, device="cpu", num_threads=1, kv_cache_memory_bytes=16 << 20) as llm:
        yield llm


def test_a_checkpoint_in_float16(tmp_path: Path) -> None:
    """The refusal names the option with which it runs."""
    copy_demo(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    weights = {name: tensor.half() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(InvalidConfig, match=r"dtype=float16 \(the checkpoint's\) .* --dtype bfloat16"):
        LLM(model=str(tmp_path), device="cpu")
    with LLM(model=str(tmp_path), device="cpu", dtype="bfloat16", num_threads=1, kv_cache_memory_bytes=16 << 20) as llm:
        (output,) = llm.chat([{"role": "user", "content": "What is 17 + 25?"}], GREEDY_CHAT, use_tqdm=False)
    assert output.outputs[0].text == "42"


def test_requests_without_parameters_get_the_models(tmp_path: Path) -> None:
    """Those of generation_config.json, unless it is not to be read."""
    copy_demo(tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    own = {"do_sample": True, "temperature": 0.5, "top_k": 1, "repetition_penalty": 1.3}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | own))
    defaults = SamplingParams(temperature=0.5, top_k=1, repetition_penalty=1.3)
    options: dict[str, Any] = {
        "model": str(tmp_path),
        "device": "cpu",
        "num_threads": 1,
        "kv_cache_memory_bytes": 16 << 20,
    }
    with LLM(**options, max_model_len=64) as llm:
        assert llm.get_default_sampling_params() == defaults
        outputs = [llm.generate("number 1", params, use_tqdm=False)[0].outputs[0] for params in (None, defaults)]
        assert outputs[0].token_ids == outputs[1].token_ids
    with LLM(**options, generation_config="vllm") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"number {number}" for number in range(8)]
    params = [SamplingParams(temperature=0, max_tokens=16 - 2 * number, ignore_eos=True) for number in range(8)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [16, 14, 12, 10, 8, 6, 4, 2]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    alone = [llm.generate(prompt, one, use_tqdm=False)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert [output.outputs for output in outputs] == [output.outputs for output in alone]


def test_token_ids_are_prompts_too(llm: LLM) -> None:
    (of_text,) = llm.generate("one two three", GREEDY, use_tqdm=False)
    (of_ids,) = llm.generate([of_text.prompt_token_ids], GREEDY, use_tqdm=False)
    assert of_ids.outputs == of_text.outputs


def test_several_choices_are_whole(llm: LLM) -> None:
    (output,) = llm.generate("one", SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True), use_tqdm=False)
    assert [(choice.index, choice.first_index, len(choice.token_ids)) for choice in output.outputs] == [
        (0, 0, 6),
        (1, 0, 6),
        (2, 0, 6),
    ]


def test_chat_takes_one_conversation_or_many(llm: LLM) -> None:
    first = [{"role": "user", "content": "What is 2 + 3?"}]
    second = [{"role": "user", "content": "Spell the word cat."}]
    together = llm.chat([first, second], GREEDY, use_tqdm=False)
    assert [llm.chat(messages, GREEDY, use_tqdm=False)[0].outputs for messages in (first, second)] == [
        output.outputs for output in together
    ]


def test_the_progress_bar_counts_requests_and_tokens(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["one", "two"], GREEDY)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens/s" in shown


def test_one_impossible_prompt_leaves_the_engine_as_it_was(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="maximum context length is 2048 tokens"):
        llm.generate(["one", [1] * 3000], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequest, match="1 sampling_params for 2 prompts"):
        llm.generate(["one", "two"], [GREEDY], use_tqdm=False)
    (output,) = llm.generate("one", GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 12


class Halting(list[SamplingParams]):
    """Behind the first of them, it waits for `go_on`."""

    def __init__(self, params: list[SamplingParams]) -> None:
        super().__init__(params)
        self.has_halted, self.go_on = threading.Event(), threading.Event()

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            self.has_halted.set()
            assert self.go_on.wait(60)
        return super().__getitem__(index)


def test_each_of_several_threads_gets_its_own_answers(llm: LLM) -> None:
    """Also those that come while another one waits for its own."""
    prompts = ["number 1", "number 2"]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    params, found = Halting([GREEDY, GREEDY]), list[list[int]]()

    def generate() -> None:
        found.extend(output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False))

    thread = threading.Thread(target=generate, daemon=True)
    thread.start()
    assert params.has_halted.wait(60)
    again = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    params.go_on.set()
    thread.join(60)
    assert found == again == expected


def test_no_prompts_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.chat([], GREEDY, use_tqdm=False) == []


def test_after_shutdown_it_says_so() -> None:
    llm = LLM(model=DEMO, device="cpu", num_threads=1, kv_cache_memory_bytes=16 << 20)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDead, match="the engine is shut down"):
        llm.generate("one", GREEDY, use_tqdm=False)


def test_refuses_before_anything_starts() -> None:
    with pytest.raises(InvalidConfig, match="unknown key 'tensor_parallel'; did you mean 'tensor_parallel_size'"):
        LLM(model=DEMO, tensor_parallel=2)
    with pytest.raises(InvalidConfig, match="unknown key 'trust_remote_code': code that a checkpoint brings is never"):
        LLM(model=DEMO, trust_remote_code=True)
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=3 does not divide"):
        LLM(model=DEMO, tensor_parallel_size=3)
    with pytest.raises(InvalidConfig, match="distributed_executor_backend=local runs one rank"):
        LLM(model=DEMO, distributed_executor_backend="local", tensor_parallel_size=2)


def test_embeddings_have_length_one_and_as_many_numbers_as_asked(llm: LLM) -> None:
    (whole,) = llm.embed("What is 17 + 25?", use_tqdm=False)
    (other,) = llm.embed([[5, 6, 7]], use_tqdm=False)
    assert len(whole.outputs.embedding) == len(other.outputs.embedding)
    assert math.hypot(*whole.outputs.embedding) == pytest.approx(1, abs=1e-6)
    assert other.prompt_token_ids == [5, 6, 7] and whole.finished
    (few,) = llm.embed("What is 17 + 25?", dimensions=8, use_tqdm=False)
    length = math.hypot(*whole.outputs.embedding[:8])
    assert few.outputs.embedding == pytest.approx([each / length for each in whole.outputs.embedding[:8]], abs=1e-6)
    with pytest.raises(InvalidRequest, match="dimensions=99999 exceeds the"):
        llm.embed("x", dimensions=99999)


def test_scores_are_the_share_of_yes(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match='"yes" and "no" are not single tokens'):
        llm.score("a", "b")
    save_judge(tmp_path)
    documents = ["Monday", "It rains in winter.", ""]
    with LLM(model=str(tmp_path), num_threads=1) as judge:
        together = [output.outputs.score for output in judge.score("Which day?", documents, use_tqdm=False)]
        alone = [judge.score("Which day?", document, use_tqdm=False)[0].outputs.score for document in documents]
        (worded,) = judge.score("Which day?", documents[0], instruction="Find days", use_tqdm=False)
    assert together == alone and all(0 < score < 1 for score in together)
    assert worded.outputs.score != together[0]
