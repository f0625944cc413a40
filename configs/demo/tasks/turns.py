"""Conversations of several turns."""

from random import Random

from vocabulary import COLORS, NAMES

from tasks.example import Example, draw, exchanges
from tasks.facts import capitals, days
from tasks.numbers import addition
from tasks.words import spelling, word


def remembering(rng: Random) -> Example:
    if rng.random() < 0.5:
        what, value = "name", rng.choice(NAMES)
    else:
        what, value = "favorite color", rng.choice(COLORS)
    told = (f"My {what} is {value}.", f"I will remember that your {what} is {value}.")
    between = draw(rng.choice((addition, spelling, days, capitals)), rng, held_out=False).messages
    recall = (rng.choice((f"What is my {what}?", f"Do you remember my {what}?")), f"Your {what} is {value}.")
    asked, answered = (message["content"] for message in between)
    turns = (told, *(((asked, answered),) if rng.random() < 0.5 else ()), recall)
    return Example(repr(turns), exchanges(*turns))


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
    return Example(it, exchanges(*turns))
