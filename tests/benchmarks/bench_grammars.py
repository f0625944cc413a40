"""Libraries that constrain sampling to a grammar, compared.

    python -m tests.benchmarks.bench_grammars

On a byte-level BPE vocabulary of Qwen's size (151,643), trained here on the Python files that are
installed, since none can be downloaded. Each case runs in a process of its own, so that its memory
is its own and a hostile one can be ended. Times are of the processor, so that others on the machine
change them little. xgrammar is measured if it is installed.
"""

import argparse
import importlib.util
import json
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCABULARY = 151_643
NUM_BYTES = 60_000_000  # of text that the vocabulary is trained on
LIMIT_SECONDS, LIMIT_BYTES = 20, 8 << 30  # of a case
END = VOCABULARY  # the end token's id

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z0-9.]{1,20}@[a-z0-9]{1,20}[.]com$"},
        "role": {"enum": ["admin", "editor", "reader"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "age", "email", "role", "tags"],
    "additionalProperties": False,
}
ANN = {"name": "Ann Smith-Jones", "age": 41, "email": "ann.smith@example.com", "role": "editor", "tags": ["a b", "x"]}


def large(count: int) -> dict[str, Any]:
    fields = {f"field_{index}": PERSON for index in range(count)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


# name: (schema, an instance of it, whose tokens are followed)
FAIR: dict[str, tuple[Any, Any]] = {
    "any object": ({"type": "object"}, {"people": [ANN] * 3}),
    "one person": (PERSON, ANN),
    "20 people as fields": (large(20), {f"field_{index}": ANN for index in range(20)}),
    "200 people as fields": (large(200), {f"field_{index}": ANN for index in range(200)}),
    "an enum of 1,000": ({"enum": [f"option number {n}" for n in range(1000)]}, "option number 517"),
}
HOSTILE: dict[str, Any] = {
    "an enum of 100,000": {"enum": [f"option {n}" for n in range(100_000)]},
    "an enum of 1,000,000": {"enum": [f"option {n}" for n in range(1_000_000)]},
    "20,000 properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
    "64 levels": nested(64),
    "1,000 levels": nested(1000),
    "(a{1,1000}){1,1000}": {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
    "((a|b)*c(a|b){200}){30}": {"type": "string", "pattern": "^((a|b)*c(a|b){200}){30}$"},
    "(.*a.{20}){10}": {"type": "string", "pattern": "^(.*a.{20}){10}$"},
    "an array of 1,000,000": {"type": "array", "items": PERSON, "minItems": 1_000_000, "maxItems": 1_000_000},
    "a string of 10,000,000": {"type": "string", "minLength": 10_000_000},
    "itself": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "2^20 by references": {
        "$defs": {
            **{f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)},
            "d20": {"type": "string"},
        },
        "$ref": "#/$defs/d0",
    },
}


class Matcher(Protocol):
    def mask(self) -> None: ...
    def take(self, token_id: int) -> None: ...
    def copy(self) -> "Matcher": ...


class LLGuidance:
    """llguidance's matcher; `compile` is to make one."""

    def __init__(self, encoder: Tokenizer) -> None:
        self.tokens = token_bytes(encoder)
        self.special_token_ids, self.eos_token_id, self.bos_token_id = [END], END, None
        self._encode = lambda text: encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        self.tokenizer = LLTokenizer(TokenizerWrapper(self), n_vocab=VOCABULARY + 1, eos_token=END)

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text, not bytes")
        return self._encode(text)

    def compile(self, schema: Any) -> Matcher:
        return LLGuidanceMatcher(LLMatcher(self.tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0))


class LLGuidanceMatcher:
    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = checked(matcher)
        self._row = np.zeros((VOCABULARY + 32) // 32, np.int32)

    def mask(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        checked(self._matcher)

    def take(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            checked(self._matcher)

    def copy(self) -> "LLGuidanceMatcher":
        return LLGuidanceMatcher(self._matcher.deep_copy())


def checked(matcher: LLMatcher) -> LLMatcher:
    if matcher.is_error():
        raise ValueError(matcher.get_error().partition("\n")[0])
    return matcher


class XGrammar:
    """xgrammar's compiler, with one thread and without its cache."""

    def __init__(self, encoder: Tokenizer) -> None:
        xgrammar = importlib.import_module("xgrammar")
        info = xgrammar.TokenizerInfo(
            token_bytes(encoder), xgrammar.VocabType.RAW, vocab_size=VOCABULARY + 1, stop_token_ids=[END]
        )
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Any) -> Matcher:
        compiled = self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True)
        return XGrammarMatcher(self._xgrammar, self._xgrammar.GrammarMatcher(compiled))


class XGrammarMatcher:
    def __init__(self, xgrammar: Any, matcher: Any) -> None:
        self._xgrammar, self._matcher = xgrammar, matcher
        self._row = xgrammar.allocate_token_bitmask(1, VOCABULARY + 1)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._row, 0)

    def take(self, token_id: int) -> None:
        if not self._matcher.accept_token(token_id):
            raise ValueError(f"token {token_id} is refused")

    def copy(self) -> "XGrammarMatcher":
        return XGrammarMatcher(self._xgrammar, self._matcher.fork())


LIBRARIES: dict[str, Callable[[Tokenizer], Any]] = {"llguidance": LLGuidance, "xgrammar": XGrammar}


def token_bytes(encoder: Tokenizer) -> list[bytes]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    tokens = [b""] * (VOCABULARY + 1)
    for token, token_id in encoder.get_vocab().items():
        tokens[token_id] = bytes(byte_of[character] for character in token)
    tokens[END] = b"<|im_end|>"
    return tokens


def train(path: Path) -> None:
    """A vocabulary of Qwen's size, about a minute."""
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        min_frequency=1,
        show_progress=False,
    )
    encoder.train_from_iterator(texts(), trainer)
    encoder.save(str(path))


def texts() -> Iterator[str]:
    left = NUM_BYTES
    for root in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]):
        for pattern in ("*.py", "*.md", "*.txt", "*.json"):
            for file in sorted(Path(root).rglob(pattern)):
                text = file.read_text(errors="ignore")[:200_000]
                left -= len(text)
                if left < 0:
                    return
                yield text


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(library: str, vocabulary: str, name: str) -> dict[str, Any]:
    """One case; runs in a process of its own."""
    encoder = Tokenizer.from_file(vocabulary)
    empty, started = megabytes(), time.thread_time()
    made = LIBRARIES[library](encoder)
    result: dict[str, Any] = {"start ms": 1e3 * (time.thread_time() - started), "start MB": megabytes() - empty}
    schema, instance = FAIR.get(name) or (HOSTILE[name], None)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    before, started = megabytes(), time.thread_time()
    try:
        matcher = made.compile(schema)
        result |= {"compile ms": 1e3 * (time.thread_time() - started)}
        started = time.thread_time()
        matcher.mask()
        result |= {"first mask ms": 1e3 * (time.thread_time() - started)}
        times = follow(matcher, encoder, instance, random.Random(0))
        result |= times | {"memory MB": megabytes() - before}
    except (ValueError, RuntimeError, MemoryError) as error:
        result |= {"refused ms": 1e3 * (time.thread_time() - started), "why": str(error)[:70]}
    return result


def follow(matcher: Matcher, encoder: Tokenizer, instance: Any, rng: random.Random) -> dict[str, float]:
    """Microseconds of each mask and of each token taken, along the tokens of the instance; and of a
    copy half-way.
    """
    if instance is None:
        return {}
    ids = encoder.encode(json.dumps(instance)).ids
    masks, takes, copies = [], [], []
    for token_id in ids:
        started = time.thread_time()
        matcher.mask()
        masked = time.thread_time()
        matcher.take(token_id)
        taken = time.thread_time()
        if rng.random() < 0.05:
            matcher = matcher.copy()
            copies.append(time.thread_time() - taken)
        masks.append(masked - started)
        takes.append(taken - masked)
    return {
        "tokens": len(ids),
        "mask us p50": 1e6 * float(np.quantile(masks, 0.5)),
        "mask us p99": 1e6 * float(np.quantile(masks, 0.99)),
        "mask us mean": 1e6 * float(np.mean(masks)),
        "take us p50": 1e6 * float(np.quantile(takes, 0.5)),
        "copy us": 1e6 * float(np.mean(copies or [0])),
    }


def apart(library: str, vocabulary: Path, name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_grammars", "--case", library, str(vocabulary), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS + 20, check=False)
    except subprocess.TimeoutExpired:
        return {"why": f"ended after {LIMIT_SECONDS + 20} s"}
    if done.returncode:
        return {"why": f"the process died ({done.returncode}): {done.stderr.strip()[-60:]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs=3)
    parser.add_argument("--vocabulary", type=Path, help="of an earlier run")
    parser.add_argument("--train", type=Path, metavar="FILE", help="make a vocabulary, and measure nothing")
    asked = parser.parse_args()
    if asked.train:
        train(asked.train)
        return
    if asked.case:
        print(json.dumps(measure(*asked.case)))
        return
    path = asked.vocabulary or Path(tempfile.mkdtemp()) / "vocabulary.json"
    if not path.exists():
        train(path)
    libraries = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    for name in (*FAIR, *HOSTILE):
        for library in libraries:
            told = apart(library, path, name)
            shown = [f"{key} {value if isinstance(value, str) else f'{value:.1f}'}" for key, value in told.items()]
            print(f"{name:26} {library:10} {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
