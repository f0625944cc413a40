"""The demo checkpoint with a tokenizer that knows "yes" and "no"."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.engine.support.workloads import DEMO

IDS = {"yes": 600, "no": 601}


def save_judge(folder: Path) -> None:
    """Two tokens are renamed: what they stood for is written with smaller ones."""
    for path in Path(DEMO).iterdir():
        if path.is_file() and path.name != "squadron-sha256.json":
            shutil.copy(path, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    rename(tokenizer, IDS)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def rename(tokenizer: dict[str, Any], ids: dict[str, int], *, single_word: bool = False) -> None:
    """In tokenizer.json: the tokens of these ids are these words from now on, wherever they stand
    (`single_word`: no letters within other words).
    """
    model = tokenizer["model"]
    token_of = {token_id: token for token, token_id in model["vocab"].items()}
    lost = {token_of[token_id] for token_id in ids.values()}
    merges = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in lost or right in lost or left + right in lost:
            lost.add(left + right)  # can no longer be reached
        else:
            merges.append(merge)
    model["merges"] = merges
    for word, token_id in ids.items():
        del model["vocab"][token_of[token_id]]
        model["vocab"][word] = token_id
        flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "special"), False) | {
            "single_word": single_word and word.isalpha()
        }
        tokenizer["added_tokens"].append({"id": token_id, "content": word} | flags)
