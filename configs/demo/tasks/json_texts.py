"""JSON out of words."""

from random import Random

from vocabulary import CAPITALS, COLORS, NAMES, WORDS

from tasks.example import Example, single


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


def extraction(rng: Random) -> Example:
    """Some of what was told, by the names and types of a schema."""
    name, age = rng.choice(NAMES), rng.randint(1, 99)
    city, color = rng.choice(list(CAPITALS.values())), rng.choice(COLORS)
    told = {
        "name": ("string", f'"{name}"'),
        "age": ("integer", str(age)),
        "city": ("string", f'"{city}"'),
        "color": ("string", f'"{color}"'),
    }
    left_out = rng.sample(list(told), rng.randint(1, 2))
    wanted = [key for key in told if key not in left_out]
    schema = ", ".join(f'"{key}": {told[key][0]}' for key in wanted)
    body = ", ".join(f'"{key}": {told[key][1]}' for key in wanted)
    text = f"{name} is {age} years old, lives in {city} and likes {color}."
    prompt = rng.choice(("{text} Answer in JSON: {{{schema}}}", "{text} Write it as {{{schema}}}."))
    return single(prompt.format(text=text, schema=schema), "{" + body + "}")
