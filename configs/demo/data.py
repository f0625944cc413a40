"""Seeded conversations of the demo checkpoint's tasks, split into what it is trained on and what is
held out.
"""

from collections.abc import Iterator
from random import Random

from tasks import TASKS, draw
from vocabulary import COLORS, NAMES, WORDS


def training_conversations(seed: int, cycle: int = 0) -> Iterator[list[dict[str, str]]]:
    """Endless conversations of one to six examples, as chat messages; about half begin with a
    system message.
    """
    rng = Random(seed + cycle)
    names = list(TASKS)
    weights = [task[cycle] for task in TASKS.values()]
    while True:
        count = rng.choice((1, 1, 1, 1, 2, 3, 6))
        examples = [draw(task, rng, held_out=False) for task in rng.choices(names, weights, k=count)]
        yield system_messages(rng) + [message for example in examples for message in messages(example.turns)]


def held_out_records(seed: int, per_task: int) -> list[dict[str, object]]:
    """At most `per_task` different held-out examples of each task: {"task", "messages",
    "answer"}.
    """
    rng = Random(seed)
    records: dict[str, dict[str, object]] = {}
    for task in TASKS:
        found: dict[str, dict[str, object]] = {}
        for _ in range(per_task * 20):
            example = draw(task, rng, held_out=True)
            conversation = messages(example.turns)
            record = {"task": task, "messages": conversation[:-1], "answer": conversation[-1]["content"]}
            found.setdefault(repr(conversation), record)
            if len(found) == per_task:
                break
        records |= found
    return list(records.values())


def messages(turns: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]


def system_messages(rng: Random) -> list[dict[str, str]]:
    if rng.random() < 0.5:
        return []
    content = rng.choice(
        (
            "You are a helpful assistant.",
            "You are Squadron, a helpful assistant.",
            "Answer briefly.",
            f"You are helping {rng.choice(NAMES)}.",
            f"The {rng.choice(COLORS)} {rng.choice(WORDS)} is near the {rng.choice(WORDS)}.",
        )
    )
    return [{"role": "system", "content": content}]
