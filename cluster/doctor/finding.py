"""What a check has found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`__str__` is what `squadron doctor` prints of it."""

    check: str  # the check's name, a word
    state: State
    text: str  # what is, with its values
    remedy: str = ""  # what to do about it; only "ok" has none

    def __str__(self) -> str:
        line = f"{self.state:<8}{self.check:<12}{self.text}"
        return f"{line}\n{'':<20}-> {self.remedy}" if self.remedy else line


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warning", text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "failure", text, remedy)
