"""As much of pydantic_core as `engine` asks for, for machines that have none."""

from typing import Any, NoReturn


def from_json(_data: str, *, allow_partial: Any = False) -> NoReturn:
    """Reads nothing of a text that is no whole JSON."""
    raise ValueError(f"without pydantic_core no JSON is read in part (allow_partial={allow_partial!r})")
