"""Asks a checkpoint the held-out questions and counts the answers that are exactly right.

By transformers, or by Squadron's own engine on the CPU: with --squadron, and with --quantization,
which only it has.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from cluster.llm import LLM
from engine.sampling_params import SamplingParams

HERE = Path(__file__).parent
BATCH_SIZE = 64
MAX_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--squadron", action="store_true", help="ask Squadron's engine")
    parser.add_argument("--quantization", choices=("int8", "int4"), help="ask Squadron's engine, its weights quantized")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if arguments.squadron or arguments.quantization:
        evaluate_squadron(arguments.folder, arguments.dtype, arguments.quantization)
    else:
        evaluate(arguments.folder, getattr(torch, arguments.dtype))


def evaluate(folder: Path, dtype: torch.dtype) -> float:
    """The share of the folder's held-out questions that its model answers exactly, computing in
    `dtype`.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    records = read_held_out(folder / "heldout.jsonl")
    return report(records, answer(model, tokenizer, records))


def evaluate_squadron(folder: Path, dtype: str, quantization: str | None) -> float:
    """The same of Squadron's engine, computing in `dtype` with weights in it or quantized."""
    records = read_held_out(folder / "heldout.jsonl")
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    answers = [""] * len(records)
    with LLM(str(folder), dtype=dtype, quantization=quantization, device="cpu") as llm:
        for tools, indices in by_tools(records):
            outputs = llm.chat([records[index]["messages"] for index in indices], params, tools=tools)
            for index, output in zip(indices, outputs, strict=True):
                answers[index] = output.outputs[0].text
    return report(records, answers)


def by_tools(records: list[dict]) -> list[tuple[list[dict] | None, list[int]]]:
    """The indices of the records that have the same tools."""
    found: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        found.setdefault(json.dumps(record.get("tools")), []).append(index)
    return [(json.loads(tools), indices) for tools, indices in found.items()]


def read_held_out(path: Path) -> list[dict]:
    """Records of {"task", "messages", "answer"}, and "tools" where there are some."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@torch.inference_mode()
def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, records: list[dict]) -> list[str]:
    """Greedy answers, in the order of the records."""
    prompts = [
        tokenizer.apply_chat_template(
            record["messages"], tools=record.get("tools"), add_generation_prompt=True, tokenize=False
        )
        for record in records
    ]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), BATCH_SIZE):
        batch = order[start : start + BATCH_SIZE]
        inputs = tokenizer([prompts[index] for index in batch], return_tensors="pt", padding=True, padding_side="left")
        inputs.pop("token_type_ids", None)
        outputs = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS)
        texts = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for index, text in zip(batch, texts, strict=True):
            answers[index] = text
    return answers


def report(records: list[dict], answers: list[str]) -> float:
    """Print a table of tasks and every wrong answer; return the share of right ones."""
    asked, right = Counter(), Counter()
    for record, given in zip(records, answers, strict=True):
        asked[record["task"]] += 1
        right[record["task"]] += given == record["answer"]
        if given != record["answer"]:
            print(f"{record['task']}: {record['messages'][-1]['content']!r} -> {given!r}, not {record['answer']!r}")
    for task, count in asked.items():
        print(f"| {task:14} | {right[task]:3} of {count:3} |")
    share = right.total() / asked.total()
    print(f"| all            | {right.total()} of {asked.total()} ({share:.1%}) |", flush=True)
    return share


if __name__ == "__main__":
    main()
