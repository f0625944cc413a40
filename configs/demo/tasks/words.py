"""Words: spelled, reversed, repeated."""

from random import Random

from vocabulary import EMOJI, NUMBER_WORDS, WORDS

from tasks.example import Example, single


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
