"""The API keys of a server: from options or the environment, and from a file that may change."""

import hmac
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from cluster.api.keys.key import Key, digest_of
from cluster.api.keys.key_file import check_unique, plain_key, read_key_file
from cluster.files.state import state_of
from engine.errors import InvalidConfig, going_on

API_KEY_VARIABLE = "SQUADRON_API_KEY"
LOOK_SECONDS = 1.0  # between two looks at the file
_logger = logging.getLogger("ray.serve")


class KeyRing:
    """Knows the keys. Pickled to the gateways, each of which looks at the file for itself; where it
    has none, the keys stay those that were found where the server was started.
    """

    def __init__(self, given: Iterable[str] = (), file: str | None = None) -> None:
        """`given`: keys without names. Raises InvalidConfig."""
        self._given = tuple(
            plain_key(key, f"key-{number}", "the configuration") for number, key in enumerate(dict.fromkeys(given), 1)
        )
        self._file = None if file is None else Path(file).absolute()
        self._seen = None if self._file is None else state_of(self._file)
        self._keys = self._given if self._file is None else self._with_file(self._file)

    def __bool__(self) -> bool:
        """Whether any key is needed."""
        return bool(self._keys)

    @property
    def are_several(self) -> bool:
        """Whether keys share what may wait."""
        return len(self._keys) > 1

    @property
    def names(self) -> list[str]:
        return [key.name for key in self._keys]

    def find(self, presented: bytes) -> Key | None:
        """All keys are tried, each in constant time: how long it takes tells nothing of them."""
        digest = digest_of(presented)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def named(self, name: str) -> Key | None:
        """The key of that name, if there is one."""
        return next((key for key in self._keys if key.name == name), None)

    def watch(self) -> None:
        """Look at the file for as long as the process lives, in a thread of its own: a disk may
        take its time.
        """
        if self._file is not None:
            threading.Thread(target=self._watch, daemon=True, name="api-keys").start()

    def look(self) -> None:
        """Read the file again if it has changed. One that is broken is reported in the log, and the
        keys stay as they were.
        """
        if self._file is None or (state := state_of(self._file)) == self._seen:
            return
        self._seen = state
        try:
            self._keys = self._with_file(self._file)
        except InvalidConfig as error:
            _logger.error("The API keys stay as they were: %s", error)
        else:
            _logger.info("Read %d API keys from %s", len(self._keys) - len(self._given), self._file)

    def _watch(self) -> None:
        never = threading.Event()
        while not never.wait(LOOK_SECONDS):
            with going_on(_logger, "looking for new API keys"):
                self.look()

    def _with_file(self, file: Path) -> tuple[Key, ...]:
        return check_unique((*self._given, *read_key_file(file)), f"api_key_file {file} and the configuration")


def given_keys(given: Iterable[str], file: str | None) -> tuple[str, ...]:
    """The keys given as options; without any, and without a file, the one of SQUADRON_API_KEY.

    Raises InvalidConfig for an empty variable: it would open a server that was meant to need a key.
    """
    keys = tuple(given)
    variable = os.environ.get(API_KEY_VARIABLE)
    if keys or file is not None or variable is None:
        return keys
    if not variable:
        raise InvalidConfig(f"{API_KEY_VARIABLE} holds an empty API key: anybody could ask")
    return (variable,)
