"""The demo's tokenizer with the tokens that models have which think and judge: `<think>`,
`</think>`, "yes" and "no".
"""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

from tests.engine.support.judge import rename
from tests.engine.support.workloads import DEMO

IDS = {"yes": 600, "no": 601, "<think>": 760, "</think>": 761}
BEGIN = "<|im_start|>assistant\\n' -}}"


def save_able_tokenizer(folder: Path) -> None:
    """A folder for the option `tokenizer`. A conversation's answer begins with `<think>` if
    `enable_thinking` says so.
    """
    demo = Path(DEMO)
    tokenizer = json.loads((demo / "tokenizer.json").read_text(encoding="utf-8"))
    rename(tokenizer, IDS, single_word=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_bytes((demo / "tokenizer_config.json").read_bytes())
    template = (demo / "chat_template.jinja").read_text(encoding="utf-8")
    able = template.replace(BEGIN, BEGIN + "{{- '<think>\\n' if enable_thinking -}}")
    assert able != template
    (folder / "chat_template.jinja").write_text(able, encoding="utf-8")


@functools.cache
def able_tokenizer() -> str:
    """Such a folder, which is removed as this process ends."""
    folder = tempfile.mkdtemp(prefix="able-")
    atexit.register(shutil.rmtree, folder)
    save_able_tokenizer(Path(folder))
    return folder
