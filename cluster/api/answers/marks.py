"""Marks in a text that arrives in pieces."""


def held_back(text: str, *marks: str) -> int:
    """The number of characters at the text's end that may be the beginning of a mark."""
    longest = max(map(len, marks)) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-count:]) for mark in marks):
            return count
    return 0


def cut(text: str, mark: str) -> tuple[str, str]:
    """(what is surely before the mark, the rest, which may be its beginning)."""
    kept = len(text) - held_back(text, mark)
    return text[:kept], text[kept:]
