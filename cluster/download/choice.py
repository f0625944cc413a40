"""Chooses the files of a model that are fetched: its configuration, its tokenizer, and weights as
safetensors. Nothing that could run is fetched: no pickles, no code.
"""

import json
from fnmatch import fnmatchcase

from cluster.download.store import RemoteFile
from engine.checkpoint.manifest import MANIFEST_FILE
from engine.checkpoint.other_formats import told_by
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE, SINGLE_FILE

SMALL = (
    *("config.json", "generation_config.json", INDEX_FILE, MANIFEST_FILE),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("modules.json", "[0-9]*_*/config.json"),  # of sentence-transformers
    *("quantize_config.json", "quant_config.json", "hf_quant_config.json"),
)


def small_files(files: tuple[RemoteFile, ...], title: str) -> tuple[RemoteFile, ...]:
    """All that is needed but the weights. Raises InvalidConfig if it is no model."""
    small = tuple(file for file in files if any(fnmatchcase(file.name, pattern) for pattern in SMALL))
    if all(file.name != "config.json" for file in small):
        others = ", ".join(file.name for file in files[:5]) or "nothing"
        has = told_by(file.name for file in files) or f"it has {others}"
        raise InvalidConfig(f"{title} has no config.json, so it is no model in Hugging Face layout; {has}")
    return small


def weight_files(files: tuple[RemoteFile, ...], index: bytes | None, title: str) -> tuple[RemoteFile, ...]:
    """The files of weights; `index`: the contents of the model's index, if it has one. Raises
    InvalidConfig.
    """
    by_name = {file.name: file for file in files}
    if SINGLE_FILE in by_name:
        return (by_name[SINGLE_FILE],)
    if index is None:
        what = told_by(by_name)
        raise InvalidConfig(f"{title} has neither {SINGLE_FILE} nor {INDEX_FILE}" + (f"; {what}" if what else ""))
    try:
        names = sorted(set(json.loads(index)["weight_map"].values()))
        return tuple(by_name[name] for name in names)
    except KeyError as error:
        raise InvalidConfig(f"{title}: {INDEX_FILE} names {error.args[0]}, which is not there") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{title}: {INDEX_FILE} has no weight_map: {error!r}") from None
