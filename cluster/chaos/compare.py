"""Compares a stream with an undisturbed one; distinguishes lost, duplicated and changed streams."""

from collections.abc import Sequence
from typing import Literal

from cluster.chaos.transcript import Transcript

Problem = Literal["lost", "duplicated", "changed"]


def problems(got: Transcript, expected: Transcript) -> set[Problem]:
    """What is wrong with a stream, compared with a complete undisturbed one; nothing if they are
    the same. Lost: it did not reach its end. Duplicated: a part of the answer was sent twice.
    Changed: any other difference.
    """
    if got.digest() == expected.digest():
        return set()
    found: set[Problem] = set() if got.is_complete else {"lost"}
    for index, choice in got.choices.items():
        if index not in expected.choices:
            found.add("changed")
            continue
        told, right = choice.pieces, expected.choices[index].pieces
        if told == right[: len(told)] and choice.finish_reason is None:
            continue
        if told != right or choice.text != expected.choices[index].text:
            found.add("duplicated" if _repeats(told, right) else "changed")
        elif choice.finish_reason != expected.choices[index].finish_reason:
            found.add("changed")
    return found or {"changed"}


def _repeats(told: Sequence[str], right: Sequence[str]) -> bool:
    """Whether `told` differs by repeating a part: right[:j] + right[i:] for some i < j, or a
    beginning of that.
    """
    same = next((at for at, (a, b) in enumerate(zip(told, right, strict=False)) if a != b), min(len(told), len(right)))
    rest = told[same:]
    return bool(rest) and any(rest == right[start : start + len(rest)] for start in range(same))
