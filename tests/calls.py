"""Counts calls of functions, Python's and C's, and lines: work that does not depend on the
machine.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Calls:
    """Those of the threads for which it is the profile function."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


@contextmanager
def counted() -> Iterator[Calls]:
    """Of this thread, within."""
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class Lines:
    """Lines of Python that are executed, one for each time around a loop."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Self:
        self.count += event == "line"
        return self


@contextmanager
def counted_lines() -> Iterator[Lines]:
    """Of this thread, within."""
    lines, before = Lines(), sys.gettrace()
    sys.settrace(lines)
    try:
        yield lines
    finally:
        sys.settrace(before)
