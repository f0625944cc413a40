"""A folder with the demo's tokenizer and no chat template, and a conversation to render."""

import json
from pathlib import Path

from tests.engine.support.workloads import DEMO

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "  Hi 🐟\n"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "What is 2 + 3?"},
]


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    (folder / "config.json").write_bytes((Path(DEMO) / "config.json").read_bytes())
    write_settings(folder, None)


def write_settings(folder: Path, chat_template: object) -> None:
    settings = json.loads((Path(DEMO) / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_reasoning_tokenizer(folder: Path) -> None:
    """The demo's tokenizer and chat template, but two of its tokens are `<think>` (760) and
    `</think>` (761), and an answer begins with the former.
    """
    demo = Path(DEMO)
    tokenizer = json.loads((demo / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    for text, token_id in (("<think>", 760), ("</think>", 761)):
        (old,) = (token for token, its_id in model["vocab"].items() if its_id == token_id)
        del model["vocab"][old]
        model["vocab"][text] = token_id
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) != old]
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": token_id, "content": text})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_bytes((demo / "tokenizer_config.json").read_bytes())
    template = (demo / "chat_template.jinja").read_text(encoding="utf-8")
    begun = template.replace("<|im_start|>assistant\\n'", "<|im_start|>assistant\\n<think>\\n'")
    assert begun != template
    (folder / "chat_template.jinja").write_text(begun, encoding="utf-8")
