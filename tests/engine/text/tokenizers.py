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
