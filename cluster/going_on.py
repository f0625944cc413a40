"""Loops that a service is nothing without."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def going_on(logger: logging.Logger, what: str) -> Iterator[None]:
    """Around a turn of such a loop: what fails unforeseen is logged, and does not end the loop."""
    try:
        yield
    except Exception:
        logger.exception("%s failed; going on", what)
