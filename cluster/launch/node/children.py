"""The processes that Ray's library starts from this one, as it holds them."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from ray._private import services

_SECONDS = 5.0  # for one that has been killed


class Children:
    """Those that are started within `remembered`."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[Any]] = []

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        popen = services.ConsolePopen

        def start(*args: Any, **options: Any) -> subprocess.Popen[Any]:
            self._children.append(popen(*args, **options))
            return self._children[-1]

        services.ConsolePopen = start
        try:
            yield
        finally:
            services.ConsolePopen = popen

    def collect(self) -> None:
        """Learn that they have ended. Ray does so only in an end in order; of the others, Python
        would warn whenever it finds them.
        """
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_SECONDS)
