"""Facts, small talk, days and months."""

from random import Random

from vocabulary import (
    CAPITALS,
    DAYS,
    EMOJI,
    ENUMERATIONS,
    HELLO,
    MONTHS,
    NAMES,
    SMALL_TALK,
    SQUADRON,
    THANKS,
    UNANSWERABLE,
    UNKNOWN,
)

from tasks.example import Example, single


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
