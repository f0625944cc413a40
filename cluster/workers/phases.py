"""How long the phases of an epoch's start took."""

import logging
import time

logger = logging.getLogger("squadron.executor")


class Phases:
    """The first phase begins now, each other one when the one before it ends."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: list[str] = []

    def end(self, name: str) -> None:
        now = time.monotonic()
        self._parts.append(f"{name} {now - self._began:.2f} s")
        self._began = now

    def log(self, epoch: int) -> None:
        logger.info("epoch %d begins; %s", epoch, ", ".join(self._parts))
