"""What may be done to a model's engines, for everybody's requests."""

from typing import Any, Literal, Protocol

CONTROL_PATHS = frozenset(["/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused"])

Control = Literal["pause", "resume", "sleep", "wake_up"]


class Controller(Protocol):
    """Of one model's engines."""

    async def control(self, what: Control, *arguments: Any) -> None:
        """Every engine replica has done it when this returns: see
        `engine.frontend.controls.Controls`. Raises Unavailable.
        """

    async def state(self) -> dict[str, bool]:
        """Whether any replica `is_paused`, and whether any `is_sleeping`. Raises Unavailable."""
