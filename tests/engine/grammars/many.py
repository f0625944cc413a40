"""Answers of the demo model to many forms, hot and cold; each that ended with `stop` must be of its
form, as jsonschema and `re` have it.

    python -m tests.engine.grammars.many [--requests 1000]

Prints how many ended how, and what was wrong; status 1 if anything was.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from typing import Any

import jsonschema

from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams
from tests.engine.support.demo import Request, answers, demo_engine, held_out_prompts

TEMPERATURES = (0.0, 1.0, 1.5)
BATCH = 200  # requests given to the engine together
MAX_TOKENS = 300
Form = dict[str, Any]

TEXT: Form = {"type": "string", "maxLength": 12}
LEAVES: tuple[Form, ...] = (
    TEXT,
    {"type": "integer", "minimum": -20, "maximum": 300},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", "dark blue", 7, None, "ü"]},
    {"const": {"kind": "fixed", "values": [1, 2]}},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": ["integer", "null"], "minimum": 3, "maximum": 9},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
)
TREE: Form = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"enum": ["leaf", "twig"]},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["name", "next"],
            "additionalProperties": False,
        }
    },
}
EXPRESSIONS = (
    r"[0-9]{4}-[01][0-9]",
    r"(yes|no|perhaps)( please)?",
    r"[a-z]+@[a-z]+\.(org|net)",
    r"([A-F0-9]{2}:){3}[A-F0-9]{2}",
    r"[^x]{3,6}",
    r"\$[1-9][0-9]{0,3}(\.[0-9]{2})?",
    r"(ab|cd){2,4}e*",
    r"[äöü]{1,3}!?",
)
WORDS = ("yes", "no", "left", "right", "ein Übergang", 'a "quoted" word', "two\nlines", "<end>", "7")


def random_schema(rng: random.Random, depth: int = 2) -> Form:
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return rng.choice(LEAVES)
    if kind < 0.45:
        least = rng.randint(0, 2)
        return {
            "type": "array",
            "items": random_schema(rng, depth - 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 2),
        }
    if kind < 0.6:
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind < 0.65:
        return TREE if depth == 2 else TEXT
    names = rng.sample(["name", "age", "tags", "a b", "ß", "id_1", "", "nested"], rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def random_form(rng: random.Random) -> Form:
    kind = rng.random()
    if kind < 0.65:
        return {"json": random_schema(rng)}
    if kind < 0.8:
        return {"regex": rng.choice(EXPRESSIONS)}
    if kind < 0.95:
        return {"choice": rng.sample(WORDS, rng.randint(1, 5))}
    return {"json_object": True}


def random_request(rng: random.Random, form: Form, prompts: list[list[int]]) -> Request:
    params = SamplingParams(
        temperature=rng.choice(TEMPERATURES),
        seed=rng.getrandbits(62),
        max_tokens=MAX_TOKENS,
        n=rng.choice((1, 1, 1, 2)),
        structured_outputs=form,  # type: ignore[arg-type]
        **rng.choice(({}, {}, {"top_k": 20}, {"frequency_penalty": 0.3}, {"min_p": 0.02}, {"min_tokens": 3})),  # type: ignore[arg-type]
    )
    return rng.choice(prompts), params


def what_is_wrong(form: Form, answer: CompletionOutput) -> str | None:
    """With an answer that ended with `stop`."""
    ((kind, wanted),) = form.items()
    try:
        match kind:
            case "json":
                jsonschema.validate(json.loads(answer.text), wanted, jsonschema.Draft202012Validator)
            case "json_object":
                assert isinstance(json.loads(answer.text), dict)
            case "regex":
                assert re.fullmatch(wanted, answer.text)
            case "choice":
                assert answer.text in wanted
    except (ValueError, AssertionError, jsonschema.ValidationError) as error:
        return f"{form}: {answer.text!r}: {str(error).partition(chr(10))[0]}"
    return None


def ask(num_requests: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """How answers ended, and what was wrong with those that ended with `stop`."""
    rng = random.Random(seed)
    prompts = held_out_prompts(16)
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    with demo_engine(ops_backend="cpu", dtype="bfloat16", max_num_seqs=64) as engine:
        for start in range(0, num_requests, BATCH):
            count = min(BATCH, num_requests - start)
            forms = [random_form(rng) for _ in range(count)]
            told = answers(engine, [random_request(rng, form, prompts) for form in forms])
            for form, output in zip(forms, told, strict=True):
                for choice in output.outputs:
                    ends[output.error or str(choice.finish_reason)] += 1
                    found = what_is_wrong(form, choice) if choice.finish_reason == "stop" else output.error
                    wrong += [found] if found else []
    return ends, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.grammars.many")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ends, wrong = ask(given.requests, given.seed)
    print(
        f"{given.requests} requests; choices that ended with "
        + ", ".join(f"{n} {end}" for end, n in ends.most_common())
    )
    print("\n".join(wrong[:20]))
    print(f"{len(wrong)} are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
