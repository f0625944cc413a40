"""lm-evaluation-harness measures a server's model, with the server's own tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.end_to_end.conftest import Server

LM_EVAL = Path(sys.prefix) / "lm_eval" / "bin" / "lm_eval"
SECONDS = 300
QUESTIONS = [
    {"question": "What is 17 + 25?", "choices": [" 42", " forty", " 17"], "answer": "42"},
    {"question": 'Spell "cat".', "choices": [" cat", " c-a-t", " dog"], "answer": "c-a-t"},
    {"question": "Count from 3 to 9.", "choices": [" 3, 4", " 9, 8", " none at all"], "answer": "3, 4, 5, 6, 7, 8, 9"},
]
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["<|im_end|>"], "max_gen_toks": 40},
        "metric_list": [{"metric": "exact_match"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not LM_EVAL.exists(), reason="no lm_eval here: .ci/lm_eval FOLDER installs it"),
]


def test_choices_and_whole_texts_have_the_servers_logprobs(server: Server, tmp_path: Path) -> None:
    samples = measure(server, tmp_path, "local-completions", "/v1/completions", "choices,rolling")
    client = server.client()
    assert len(samples["choices"]) == len(samples["rolling"]) == len(QUESTIONS)
    for sample in samples["choices"]:
        question = sample["doc"]
        for choice, ((told, _),) in zip(question["choices"], sample["resps"], strict=True):
            ours = logprobs(client, question["question"] + choice)
            assert float(told) == pytest.approx(sum(ours[len(logprobs(client, question["question"])) :]))


def test_answers_to_conversations(server: Server, tmp_path: Path) -> None:
    samples = measure(
        server, tmp_path, "local-chat-completions", "/v1/chat/completions", "answers", "--apply_chat_template"
    )
    assert [sample["exact_match"] for sample in samples["answers"]] == [1.0] * len(QUESTIONS)


def logprobs(client: openai.OpenAI, prompt: str) -> list[float | None]:
    """Of each of the prompt's tokens; the first has none."""
    answer = client.completions.create(model="demo", prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    found = answer.choices[0].logprobs
    assert found is not None and found.token_logprobs is not None
    return list(found.token_logprobs)


def measure(
    server: Server, folder: Path, kind: str, route: str, tasks: str, *options: str
) -> dict[str, list[dict[str, Any]]]:
    """Each task's samples, in the questions' order."""
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": str(folder / "questions.jsonl")}}
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, "test_split": "train"} | data | task))
    command = [LM_EVAL, "run", "--model", kind, "--tasks", tasks, "--include_path", folder, *options]
    command += ["--model_args", f"model=demo,base_url={server.url}{route},num_concurrent=4,max_retries=1"]
    command += ["--output_path", folder / "out", "--log_samples"]
    environment = os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=folder)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = {}
    for name in tasks.split(","):
        (path,) = (folder / "out").rglob(f"samples_{name}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[name] = sorted(samples, key=lambda sample: int(sample["doc_id"]))
    return found
