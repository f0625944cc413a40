"""Chooses the files of a model that are fetched: its configuration, its tokenizer, and weights as
safetensors. Nothing that could run is fetched: no pickles, no code. Of a model whose pipeline
stages are on several nodes, a node needs the files that its own stages read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cluster.checkpoint.spec import read_spec
from cluster.download.store import RemoteFile
from engine.checkpoint.manifest import MANIFEST_FILE
from engine.checkpoint.model_config import ModelConfig
from engine.checkpoint.other_formats import told_by
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE, SINGLE_FILE, files_of_stages

SMALL = (
    *("config.json", "generation_config.json", INDEX_FILE, MANIFEST_FILE),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("modules.json", "[0-9]*_*/config.json"),  # of sentence-transformers
    *("quantize_config.json", "quant_config.json", "hf_quant_config.json"),
)


def small_files(files: tuple[RemoteFile, ...], title: str) -> tuple[RemoteFile, ...]:
    """All that is needed but the weights. Raises InvalidConfig if it is no model, or if a file
    would have its place outside of the model's folder.
    """
    for file in files:
        if file.name.startswith("/") or ".." in file.name.split("/"):
            raise InvalidConfig(f"{title} has {file.name}, which is no name of a file below it")
    small = tuple(filter(_is_small, files))
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
        return tuple(by_name[name] for name in sorted(set(_weight_map(index, title).values())))
    except KeyError as error:
        raise InvalidConfig(f"{title}: {INDEX_FILE} names {error.args[0]}, which is not there") from None


def files_of_model(files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    """All that `small_files` and `weight_files` choose from, whatever an index says."""
    has_one = any(file.name == SINGLE_FILE for file in files)
    weights = SINGLE_FILE if has_one else "*.safetensors"
    return tuple(
        file for file in files if _is_small(file) or ("/" not in file.name and fnmatchcase(file.name, weights))
    )


def _is_small(file: RemoteFile) -> bool:
    return any(fnmatchcase(file.name, pattern) for pattern in SMALL)


@dataclass(frozen=True, slots=True)
class Share:
    """Of a node: some stages of the pipeline, not all."""

    stages: frozenset[int]
    num_stages: int

    @property
    def has_last(self) -> bool:
        """Where tokens are drawn, and a draft model guesses."""
        return self.num_stages - 1 in self.stages

    def weight_files(self, folder: Path) -> frozenset[str]:
        """Their names; `folder` holds at least the small files. Raises InvalidConfig."""
        index = folder / INDEX_FILE
        if (folder / SINGLE_FILE).exists() or not index.exists():
            return frozenset({SINGLE_FILE})
        weight_map = _weight_map(index.read_bytes(), str(folder))
        spec = read_spec(ModelConfig.load(str(folder)), str(folder))
        return files_of_stages(weight_map, spec, self.stages, self.num_stages)


def shares(nodes: Sequence[str], ranks_of_stage: int) -> list[Share | None]:
    """Of each rank's node; None: it has all stages. `nodes`: by rank, stage after stage."""
    stage_of = [rank // ranks_of_stage for rank in range(len(nodes))]
    num_stages = len(nodes) // ranks_of_stage
    here = {
        node: frozenset(stage for stage, other in zip(stage_of, nodes, strict=True) if other == node) for node in nodes
    }
    return [None if len(here[node]) == num_stages else Share(here[node], num_stages) for node in nodes]


def _weight_map(index: bytes, title: str) -> dict[str, str]:
    """The file of each tensor. Raises InvalidConfig."""
    try:
        return {str(name): str(file) for name, file in json.loads(index)["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidConfig(f"{title}: {INDEX_FILE} has no weight_map: {error!r}") from None
