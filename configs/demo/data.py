"""Seeded conversations of the demo checkpoint's tasks, split into what it is trained on and what is
held out.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tasks import TASKS
from tasks.example import Message, draw
from tasks.tools import TOOLS, not_calling, relaying
from vocabulary import COLORS, NAMES, WORDS


class Conversation(NamedTuple):
    """As the chat template wants it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


def training_conversations(seed: int, cycle: int = 0) -> Iterator[Conversation]:
    """Endless conversations of one to six examples, all of which have the tools of the first; about
    half begin with a system message.
    """
    rng = Random(seed + cycle)
    names = list(TASKS)
    weights = [task[cycle] for task in TASKS.values()]
    while True:
        count = rng.choice((1, 1, 1, 1, 2, 3, 6))
        drawn = [draw(TASKS[task][-1], rng, held_out=False) for task in rng.choices(names, weights, k=count)]
        if drawn[0].tools:  # which are long to show: several examples share them
            drawn += [draw(rng.choice((relaying, not_calling)), rng, held_out=False) for _ in range(count + 1)]
        examples = [example for example in drawn if example.tools == drawn[0].tools]
        messages = system_messages(rng) + [message for example in examples for message in example.messages]
        yield Conversation(messages, definitions(examples[0].tools))


def held_out_records(seed: int, per_task: int) -> list[dict[str, Any]]:
    """At most `per_task` different held-out examples of each task: {"task", "messages", "answer"},
    and "tools" where there are some.
    """
    rng = Random(seed)
    records: dict[str, dict[str, Any]] = {}
    for task, (*_, make) in TASKS.items():
        found: dict[str, dict[str, Any]] = {}
        for _ in range(per_task * 20):
            example = draw(make, rng, held_out=True)
            *asked, last = example.messages
            record = {"task": task, "messages": asked, "answer": text(last)}
            if example.tools:
                record["tools"] = definitions(example.tools)
            found.setdefault(repr((example.messages, example.tools)), record)
            if len(found) == per_task:
                break
        records |= found
    return list(records.values())


def definitions(tools: tuple[str, ...]) -> list[dict[str, Any]] | None:
    return [TOOLS[name] for name in tools] or None


def text(answer: Message) -> str:
    """What the model writes, as the chat template renders it."""
    calls = (json.dumps(call["function"], ensure_ascii=False) for call in answer.get("tool_calls", ()))
    return answer["content"] + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


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
