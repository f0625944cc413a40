"""Sums, products, comparisons and counting."""

from random import Random

from tasks.example import Example, single

SUMS = ("What is {a} + {b}?", "{a} + {b} =", "Add {a} and {b}.", "What is {a} plus {b}?", "{a}+{b}")


def addition(rng: Random) -> Example:
    a, b = rng.randint(0, 40), rng.randint(0, 40)
    prompt = rng.choice(SUMS)
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
