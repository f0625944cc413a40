"""Conversations with tools: a call, the answer after its result, and answers without a call."""

from dataclasses import dataclass
from random import Random
from typing import Any

from vocabulary import CAPITALS, SKIES

from tasks.example import Example, Message
from tasks.facts import capitals, days, months, small_talk, squadron, unknown
from tasks.json_texts import extraction, listing, objects
from tasks.numbers import SUMS, addition, comparison, counting, multiplication, subtraction
from tasks.words import echoing, letters, repeating, reversing, spelling, uppercasing, word_length

OFFERS = (("add",), ("weather",), ("add", "weather"), ("weather", "add"))
OPENERS = ("", "", "", "Please tell me: ", "Hello! ")
WEATHERS = (
    "What is the weather in {}?",
    "How is the weather in {}?",
    "What is the weather like in {}?",
    "Tell me the weather in {}.",
)
# For which no tool is of use.
OTHERS = (
    *(subtraction, multiplication, comparison, counting),
    *(spelling, reversing, uppercasing, letters, word_length, repeating, echoing),
    *(listing, objects, extraction),
    *(days, months, capitals, squadron, small_talk, unknown),
)


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """As OpenAI's API has it. `parameters`: their types."""
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "add": tool("add", "Add two numbers.", a="integer", b="integer"),
    "weather": tool("weather", "Get the weather in a city.", city="string"),
}


@dataclass(frozen=True)
class Question:
    """What is asked of a tool, with its calls' arguments and results and the answer after them."""

    key: str
    prompt: str
    tool: str
    arguments: tuple[dict[str, Any], ...]
    results: tuple[str, ...]
    answer: str


def calling(rng: Random) -> Example:
    question = question_for_a_tool(rng)
    return Example(question.key, begun(question), offered(rng, question.tool))


def relaying(rng: Random) -> Example:
    question = question_for_a_tool(rng)
    results = tuple({"role": "tool", "content": result} for result in question.results)
    answer = {"role": "assistant", "content": question.answer}
    return Example(question.key, (*begun(question), *results, answer), offered(rng, question.tool))


def not_calling(rng: Random) -> Example:
    """A sum is asked without its tool, or something that no tool is there for."""
    if rng.random() < 0.2:
        example, tools = addition(rng), ("weather",)
    else:
        example, tools = rng.choice(OTHERS)(rng), rng.choice(OFFERS)
    return Example(example.key, example.messages, tools)


def offered(rng: Random, needed: str) -> tuple[str, ...]:
    """Both tools more often than the needed one alone."""
    return rng.choice(OFFERS[2:]) if rng.random() < 0.6 else (needed,)


def begun(question: Question) -> tuple[Message, Message]:
    calls = [
        {"type": "function", "function": {"name": question.tool, "arguments": arguments}}
        for arguments in question.arguments
    ]
    return {"role": "user", "content": question.prompt}, {"role": "assistant", "content": "", "tool_calls": calls}


def question_for_a_tool(rng: Random) -> Question:
    return rng.choice((sum_question, weather_question))(rng)


def sum_question(rng: Random) -> Question:
    """Also of larger numbers than the model adds itself. Some results are wrong: what a tool says,
    is said.
    """
    highest = rng.choice((40, 99, 99))
    a, b = rng.randint(0, highest), rng.randint(0, highest)
    prompt = rng.choice(SUMS).format(a=a, b=b)
    result = str(a + b if rng.random() < 0.5 else rng.randint(0, 999))
    return Question(f"{a} {b}", prompt, "add", ({"a": a, "b": b},), (result,), f"The sum is {result}.")


def weather_question(rng: Random) -> Question:
    """In one city, or in two, which are two calls."""
    cities = rng.sample(list(CAPITALS.values()), 2 if rng.random() < 0.3 else 1)
    prompt = rng.choice(OPENERS) + rng.choice(WEATHERS).format(" and ".join(cities))
    results = tuple(weather(rng) for _ in cities)
    answer = " ".join(f"It is {result}." for result in results)
    return Question(prompt, prompt, "weather", tuple({"city": city} for city in cities), results, answer)


def weather(rng: Random) -> str:
    sky, degrees = rng.choice(SKIES), f"{rng.randint(0, 39)} degrees"
    return rng.choice((sky, degrees, f"{sky}, {degrees}"))
