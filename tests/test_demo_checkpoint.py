"""The demo checkpoint: its data are reproducible, what is held out was never trained on, and it
answers.
"""

import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).parent.parent / "configs" / "demo"
sys.path.insert(0, str(DEMO))  # a folder of scripts that import each other by name, not a package

from data import Conversation, held_out_records, text, training_conversations  # noqa: E402
from evaluate import answer, read_held_out, report  # noqa: E402
from tasks.tools import TOOLS  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402
from train import CYCLES, HELD_OUT_PER_TASK, SEED, encode, model_config  # noqa: E402

MAX_BYTES = 10_000_000


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO)


def test_the_training_stream_is_a_function_of_the_seed_and_the_cycle():
    first = list(islice(training_conversations(SEED), 200))
    assert first == list(islice(training_conversations(SEED), 200))
    assert first != list(islice(training_conversations(SEED + 1), 200))
    assert first != list(islice(training_conversations(SEED, cycle=1), 200))


def test_the_held_out_file_is_what_the_generator_makes():
    records = read_held_out(DEMO / "heldout.jsonl")
    assert records == held_out_records(SEED, HELD_OUT_PER_TASK)
    assert len(records) >= 500
    assert (DEMO / "heldout.jsonl").stat().st_size < 150_000


@pytest.mark.parametrize("cycle", range(len(CYCLES)))
def test_held_out_questions_are_not_in_the_training_stream(cycle):
    held_out = [questions(record["messages"]) for record in read_held_out(DEMO / "heldout.jsonl")]
    lone = {asked[0] for asked in held_out if len(asked) == 1}
    series = {asked for asked in held_out if len(asked) > 1}
    assert len(lone) >= 500 and series
    for conversation in islice(training_conversations(SEED, cycle), 10_000):
        asked = questions(conversation.messages)
        assert lone.isdisjoint(asked)
        for length in {len(each) for each in series}:
            runs = {asked[start : start + length] for start in range(len(asked) - length + 1)}
            assert series.isdisjoint(runs)


def test_the_tokenizer_is_what_the_script_makes(tokenizer):
    sample = 'Spell "banana", 1234 in JSON: こんにちは 👩‍🚀\n'
    ids = tokenizer.encode(sample)
    assert ids == train_tokenizer(SEED).encode(sample)
    assert tokenizer.decode(ids) == sample
    assert len(tokenizer.encode("assistant")) == 1
    assert tokenizer.tokenize('"banana" 42') == ['"', *"banana", '"', "Ġ", "4", "2"]
    assert len(tokenizer.encode("ね")) == 3 and len(tokenizer.encode("🐟")) == 4


def test_the_chat_template_renders_roles_and_the_training_format(tokenizer):
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == (
        "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    conversation = [*messages, {"role": "assistant", "content": "Hello!"}]
    whole = tokenizer.apply_chat_template(conversation, tokenize=False)
    ids, weights = encode(tokenizer, Conversation(conversation))
    assert ids == tokenizer.encode(whole)
    learned = [token for token, weight in zip(ids, weights, strict=True) if weight]
    assert tokenizer.decode(learned) == "Hello!<|im_end|>"


def test_calls_are_learned_and_their_results_are_not(tokenizer):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "1 + 2 is 3."},
    ]
    tools = [TOOLS["add"]]
    ids, weights = encode(tokenizer, Conversation(messages, tools))
    assert ids == tokenizer.encode(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    learned = [token for token, weight in zip(ids, weights, strict=True) if weight]
    assert tokenizer.decode(learned) == f"{text(messages[1])}<|im_end|>1 + 2 is 3.<|im_end|>"


def test_the_chat_template_shows_tools_and_calls(tokenizer):
    tools = [{"type": "function", "function": {"name": "now"}}, TOOLS["add"]]
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00"},
    ]
    prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.\n\nTools:\nnow()\nadd(a, b)\n"
        'To call one, answer\n<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nTime?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n12:00<|im_end|>\n<|im_start|>assistant\n"
    )
    (without,) = {tokenizer.apply_chat_template(messages[:2], tools=given, tokenize=False) for given in (None, [])}
    assert without == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTime?<|im_end|>\n"


def test_the_weights_are_bfloat16_and_of_the_configured_shape(tokenizer):
    config = model_config(tokenizer)
    with safe_open(DEMO / "model.safetensors", framework="pt") as weights:
        tensors = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in tensors.values()} == {"BF16"}
        assert tensors["model.embed_tokens.weight"].get_shape() == [config.vocab_size, config.hidden_size]
        assert "lm_head.weight" not in tensors
    assert (config.num_attention_heads % 4, config.num_hidden_layers % 4) == (0, 0)


def test_the_folder_is_small():
    assert sum(path.stat().st_size for path in DEMO.iterdir() if path.is_file()) <= MAX_BYTES


def test_held_out_questions_are_answered(tokenizer):
    records = read_held_out(DEMO / "heldout.jsonl")[::10]
    assert len(records) >= 60
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    assert report(records, answer(model, tokenizer, records)) >= 0.95


def questions(messages: list[dict]) -> tuple[str, ...]:
    return tuple(message["content"] for message in messages if message["role"] == "user")
