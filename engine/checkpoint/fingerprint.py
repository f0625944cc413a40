"""What tokens depend on beside the request: named facts, and a short hash of all of them. Two
engines with the same fingerprint answer a request with the same tokens, to the last bit of the
logprobs; so a request that has tokens continues only on an engine with the same one. Ranks, batches
and cache sizes are not part of it: exact results do not depend on them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_OLDER_FILES = ("special_tokens_map.json", "added_tokens.json")
_TEMPLATE_FILES = "additional_chat_templates/*.jinja"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a process can compute with, before a level is chosen."""

    backend: str  # of ops
    levels: tuple[str, ...]  # instruction sets or device generations, the best first
    reason: str | None = None  # why no faster backend was chosen


@dataclass(frozen=True, slots=True)
class Sample:
    """What a node can tell of a checkpoint's numbers. `rest`: a digest of all but the weight files.
    `files`: a digest of each of these, by name; None: it is not on this node.
    """

    rest: str
    files: Mapping[str, str | None]

    @property
    def digest(self) -> str:
        """Of all of it: the same wherever the files are the same."""
        if not self.files:
            return self.rest
        return hashlib.sha256(json.dumps([self.rest, sorted(self.files.items())]).encode()).hexdigest()[:16]

    def and_of(self, others: Sequence["Sample"]) -> "Sample":
        """With what others have of the files; where several have one, this one's."""
        known = {name: digest for each in (*reversed(others), self) for name, digest in each.files.items() if digest}
        return Sample(self.rest, {name: known.get(name) for name in self.files})


def fingerprint(arithmetic: Mapping[str, str]) -> str:
    """The hash of facts by name."""
    facts = json.dumps(dict(sorted(arithmetic.items())))
    return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


class Identity:
    """What tokens depend on beside the request and the workers' arithmetic: the same for all of an
    engine's epochs.
    """

    def __init__(self, tokenizer_folder: str, eos_token_ids: Iterable[int]) -> None:
        self._folder = tokenizer_folder
        self._ends = " ".join(map(str, sorted(eos_token_ids)))

    def of(self, arithmetic: Mapping[str, str]) -> dict[str, str]:
        """All of it, by name."""
        return {**arithmetic, "tokenizer": self._tokenizer, "eos_token_ids": self._ends}

    @cached_property
    def _tokenizer(self) -> str:
        return tokenizer_digest(self._folder)


def tokenizer_digest(folder: str) -> str:
    """A digest of the files that turn texts and conversations into tokens."""
    digest = hashlib.sha256()
    paths = [Path(folder) / name for name in _TOKENIZER_FILES]
    older = [path for name in _OLDER_FILES if (path := Path(folder) / name).exists()]
    if _lists_tokens(Path(folder) / "tokenizer_config.json"):
        older = []  # without effect, as in transformers
    for path in [*paths, *sorted(Path(folder).glob(_TEMPLATE_FILES)), *older]:
        add_file(digest, path)
    return digest.hexdigest()[:16]


def add_file(digest: "hashlib._Hash", path: Path) -> None:
    """Its name and contents; one that is not there counts as empty."""
    data = path.read_bytes() if path.exists() else b""
    digest.update(f"{path.name} {len(data)} ".encode() + data)


def _lists_tokens(settings: Path) -> bool:
    """By id, and so all of them."""
    try:
        return "added_tokens_decoder" in json.loads(settings.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False
