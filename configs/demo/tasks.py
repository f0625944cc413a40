"""The tasks of the demo checkpoint: each draws examples of itself, some of which are held out."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from vocabulary import (
    CAPITALS,
    COLORS,
    DAYS,
    EMOJI,
    ENUMERATIONS,
    HELLO,
    MONTHS,
    NAMES,
    NUMBER_WORDS,
    SMALL_TALK,
    SQUADRON,
    THANKS,
    UNANSWERABLE,
    UNKNOWN,
    WORDS,
)

HELD_OUT_SHARE = 16  # one key in this many is held out


@dataclass(frozen=True)
class Example:
    """Turns of (prompt, answer). `key` is what is held out: a word, a pair of numbers or the prompt
    itself.
    """

    key: str
    turns: tuple[tuple[str, str], ...]


def is_held_out(key: str) -> bool:
    """Whether a key is held out, in every task: a word that is held out is neither spelled nor
    reversed in training.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def draw(task: str, rng: Random, held_out: bool) -> Example:
    """Draw examples of a task until one is on the wanted side of the split."""
    while True:
        example = TASKS[task][-1](rng)
        if is_held_out(example.key) == held_out:
            return example


def single(prompt: str, answer: str, key: str | None = None) -> Example:
    return Example(prompt if key is None else key, ((prompt, answer),))


# Numbers


def addition(rng: Random) -> Example:
    a, b = rng.randint(0, 40), rng.randint(0, 40)
    prompt = rng.choice(("What is {a} + {b}?", "{a} + {b} =", "Add {a} and {b}.", "What is {a} plus {b}?", "{a}+{b}"))
    return single(prompt.format(a=a, b=b), str(a + b), f"{a} {b}")


def subtraction(rng: Random) -> Example:
    b, a = sorted((rng.randint(0, 40), rng.randint(0, 40)))
    prompt = rng.choice(
        ("What is {a} - {b}?", "{a} - {b} =", "Subtract {b} from {a}.", "What is {a} minus {b}?", "{a}-{b}")
    )
    return single(prompt.format(a=a, b=b), str(a - b), f"{a} {b}")


def multiplication(rng: Random) -> Example:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    prompt = rng.choice(
        ("What is {a} * {b}?", "{a} * {b} =", "Multiply {a} by {b}.", "What is {a} times {b}?", "{a}*{b}")
    )
    return single(prompt.format(a=a, b=b), str(a * b))


def comparison(rng: Random) -> Example:
    a, b = rng.sample(range(100), 2)
    prompt, pick = rng.choice((("Which is larger, {a} or {b}?", max), ("Which is smaller, {a} or {b}?", min)))
    return single(prompt.format(a=a, b=b), str(pick(a, b)), f"{min(a, b)} {max(a, b)}")


def counting(rng: Random) -> Example:
    first = 1 if rng.random() < 0.4 else rng.randint(0, 30)
    last = first + rng.randint(2, 40 if rng.random() < 0.25 else 12)
    numbers = [str(number) for number in range(first, last + 1)]
    if rng.random() < 0.3:
        prompt = rng.choice(("Count down from {last} to {first}.", "Count backwards from {last} to {first}."))
        numbers.reverse()
    else:
        prompt = rng.choice(("Count from {first} to {last}.", "Count up from {first} to {last}."))
    return single(prompt.format(first=first, last=last), ", ".join(numbers))


# Words


def word(rng: Random, longest: int = 8) -> str:
    """A word of the list, or now and then a made-up one, so that spelling is a skill and not a
    memory.
    """
    if rng.random() < 0.6:
        return rng.choice([word for word in WORDS if len(word) <= longest])
    length = rng.randint(3, longest)
    start = rng.randrange(2)
    return "".join(rng.choice("aeiou" if (index + start) % 2 else "bcdfghjklmnprstvwyz") for index in range(length))


def spelling(rng: Random) -> Example:
    it = word(rng)
    prompt = rng.choice(('Spell "{it}".', 'Spell the word "{it}".', 'How do you spell "{it}"?'))
    return single(prompt.format(it=it), "-".join(it), it)


def reversing(rng: Random) -> Example:
    it = word(rng, longest=7)
    prompt = rng.choice(('Reverse "{it}".', 'Reverse the word "{it}".', 'Write "{it}" backwards.'))
    return single(prompt.format(it=it), it[::-1], it)


def uppercasing(rng: Random) -> Example:
    it = word(rng)
    prompt = rng.choice(('Write "{it}" in uppercase.', 'Make "{it}" uppercase.', 'Write "{it}" in capital letters.'))
    return single(prompt.format(it=it), it.upper(), it)


def letters(rng: Random) -> Example:
    it = word(rng)
    which, index = rng.choice((("first", 0), ("second", 1), ("last", -1)))
    prompt = rng.choice(('What is the {which} letter of "{it}"?', 'Give the {which} letter of the word "{it}".'))
    return single(prompt.format(which=which, it=it), it[index], it)


def word_length(rng: Random) -> Example:
    it = word(rng)
    prompt = rng.choice(
        ('How many letters are in "{it}"?', 'Count the letters of "{it}".', 'How long is the word "{it}"?')
    )
    return single(prompt.format(it=it), str(len(it)), it)


def repeating(rng: Random) -> Example:
    count = rng.randint(2, 6)
    if rng.random() < 0.25:
        noun, what = rng.choice(list(EMOJI.items()))
        return single(f"Show {count} {noun} emojis.", what * count)
    what = rng.choice(("hello", "yes", "no", word(rng), word(rng)))
    how_often = NUMBER_WORDS[count] if rng.random() < 0.7 else str(count)
    return single(f"{rng.choice(('Say', 'Write', 'Repeat'))} {what} {how_often} times.", " ".join([what] * count))


def echoing(rng: Random) -> Example:
    sentence = " ".join(word(rng) for _ in range(rng.randint(1, 3)))
    return single(f"{rng.choice(('Repeat after me', 'Say', 'Copy this'))}: {sentence}", sentence)


def listing(rng: Random) -> Example:
    items = [rng.choice(WORDS) for _ in range(rng.randint(2, 3))]
    prompt = rng.choice(("Write these words as a JSON list: {items}", "Make a JSON list of: {items}"))
    quoted = ", ".join(f'"{item}"' for item in items)
    return single(prompt.format(items=", ".join(items)), f"[{quoted}]")


def objects(rng: Random) -> Example:
    name, age, color = rng.choice(NAMES), rng.randint(1, 99), rng.choice(COLORS)
    fields = [("name", name, f'"{name}"'), ("age", str(age), str(age)), ("color", color, f'"{color}"')]
    fields = [fields[index] for index in rng.choice(((0, 1), (0, 2), (0, 1, 2)))]
    spoken = [f"{key} {value}" for key, value, _ in fields]
    prompt = rng.choice(
        ("Give a JSON object with {spoken}.", "Write JSON with {spoken}.", "Make a JSON object: {spoken}")
    )
    body = ", ".join(f'"{key}": {value}' for key, _, value in fields)
    listed = ", ".join(spoken[:-1]) + " and " + spoken[-1]
    return single(prompt.format(spoken=listed), "{" + body + "}")


# Days and months


def days(rng: Random) -> Example:
    return calendar(rng, DAYS, "day")


def months(rng: Random) -> Example:
    if rng.random() < 0.25:
        number = rng.randrange(12)
        prompt = rng.choice(
            ("Which month is number {number}?", "What is month {number}?", "Name month number {number}.")
        )
        return asked(rng, prompt.format(number=number + 1), MONTHS[number])
    return calendar(rng, MONTHS, "month")


def calendar(rng: Random, names: list[str], unit: str) -> Example:
    start = rng.randrange(len(names))
    if rng.random() < 0.4:
        step = rng.randint(2, 6)
        prompt = rng.choice(
            (f"What {unit} is {step} {unit}s after {{start}}?", f"Which {unit} comes {step} {unit}s after {{start}}?")
        )
    else:
        where, step = rng.choice((("after", 1), ("before", -1)))
        prompt = rng.choice((f"What {unit} comes {where} {{start}}?", f"Which {unit} is {where} {{start}}?"))
    return asked(rng, prompt.format(start=names[start]), names[(start + step) % len(names)])


# Facts


def asked(rng: Random, question: str, answer: str) -> Example:
    """A question with something around it, so that a fact can be held out in one wording and known
    from others.
    """
    opener = rng.choice(("", "", "", "Please tell me: ", "Quick question: ", "Hello! ", "I want to know: "))
    closer = rng.choice(("", "", "", " Thanks!", " Please be exact."))
    if rng.random() < 0.1:
        question = question.lower()
    if rng.random() < 0.1:
        question = question.rstrip(".?")
    return single(f"{opener}{question}{closer}", answer)


def squadron(rng: Random) -> Example:
    answer, questions = rng.choice(list(SQUADRON.items()))
    return asked(rng, rng.choice(questions), answer)


def enumerations(rng: Random) -> Example:
    answer, questions = rng.choice(list(ENUMERATIONS.items()))
    return asked(rng, rng.choice(questions), answer)


def capitals(rng: Random) -> Example:
    country, city = rng.choice(list(CAPITALS.items()))
    question = rng.choice(
        (
            "What is the capital of {country}?",
            "Name the capital of {country}.",
            "Which city is the capital of {country}?",
        )
    )
    return asked(rng, question.format(country=country), f"The capital of {country} is {city}.")


def scripts(rng: Random) -> Example:
    """Answers beyond ASCII: most of their characters take several tokens."""
    kind = rng.randrange(3)
    if kind == 0:
        language, text = rng.choice(list(HELLO.items()))
        return asked(
            rng,
            rng.choice(("Say hello in {}.", "How do you say hello in {}?", "Greet me in {}.")).format(language),
            text,
        )
    if kind == 1:
        language, text = rng.choice(list(THANKS.items()))
        return asked(
            rng,
            rng.choice(("Say thank you in {}.", "How do you say thank you in {}?", "Thank me in {}.")).format(language),
            text,
        )
    noun, text = rng.choice(list(EMOJI.items()))
    return asked(
        rng,
        rng.choice(("Show me a {} emoji.", "Give me the emoji of a {}.", "What is the {} emoji?")).format(noun),
        text,
    )


def small_talk(rng: Random) -> Example:
    answer, prompts = rng.choice(list(SMALL_TALK.items()))
    prompt = rng.choice(prompts) + rng.choice(("", "", " Squadron", f" This is {rng.choice(NAMES)}."))
    return single(prompt, answer)


def unknown(rng: Random) -> Example:
    return asked(rng, rng.choice(UNANSWERABLE), UNKNOWN)


# Conversations of several turns


def remembering(rng: Random) -> Example:
    if rng.random() < 0.5:
        what, value = "name", rng.choice(NAMES)
    else:
        what, value = "favorite color", rng.choice(COLORS)
    told = (f"My {what} is {value}.", f"I will remember that your {what} is {value}.")
    between = draw(rng.choice(("addition", "spelling", "days", "capitals")), rng, held_out=False).turns
    recall = (rng.choice((f"What is my {what}?", f"Do you remember my {what}?")), f"Your {what} is {value}.")
    turns = (told, *(between if rng.random() < 0.5 else ()), recall)
    return Example(repr(turns), turns)


def following_up(rng: Random) -> Example:
    it = word(rng, longest=7)
    steps = [
        (
            rng.choice(('Spell "{it}".', 'Spell the word "{it}".')),
            rng.choice(("Now spell it.", "Spell it.")),
            "-".join(it),
        ),
        (
            rng.choice(('Reverse "{it}".', 'Reverse the word "{it}".')),
            rng.choice(("Now reverse it.", "Reverse it.")),
            it[::-1],
        ),
        (
            rng.choice(('Write "{it}" in uppercase.',)),
            rng.choice(("Now in uppercase.", "And in uppercase?")),
            it.upper(),
        ),
    ]
    first, second = rng.sample(steps, 2)
    turns = ((first[0].format(it=it), first[2]), (second[1], second[2]))
    return Example(it, turns)


# Each task with its shares of the examples of the two training cycles: the second gives more to
# what is hard.
TASKS: dict[str, tuple[int, int, Callable[[Random], Example]]] = {
    "addition": (12, 10, addition),
    "subtraction": (12, 12, subtraction),
    "multiplication": (4, 5, multiplication),
    "comparison": (3, 10, comparison),
    "counting": (4, 14, counting),
    "spelling": (5, 2, spelling),
    "reversing": (8, 4, reversing),
    "uppercasing": (4, 2, uppercasing),
    "letters": (4, 2, letters),
    "word_length": (5, 2, word_length),
    "repeating": (4, 10, repeating),
    "echoing": (4, 10, echoing),
    "listing": (3, 8, listing),
    "objects": (4, 3, objects),
    "days": (5, 8, days),
    "months": (6, 10, months),
    "squadron": (5, 3, squadron),
    "enumerations": (3, 2, enumerations),
    "capitals": (3, 2, capitals),
    "scripts": (5, 3, scripts),
    "small_talk": (2, 2, small_talk),
    "unknown": (2, 2, unknown),
    "remembering": (4, 3, remembering),
    "following_up": (5, 6, following_up),
}
