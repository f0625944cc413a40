"""What keeps a Ray cluster of this machine alone to its user, beside the folder it is in: a token,
and loopback.
"""

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ray._private import ray_constants

AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# Ray's own switch, made for systems where a firewall asks about every socket: a cluster that has no
# other nodes.
LOOPBACK_ONLY = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}


@contextlib.contextmanager
def token_authentication(folder: Path) -> Iterator[dict[str, str]]:
    """A token for a new cluster; what another process of this user needs in its environment to be
    let in.

    The token is kept in `folder`, which nobody else can enter. Nothing is done where the
    environment has its own idea of authentication.
    """
    if not os.environ.keys().isdisjoint(AUTHENTICATION):
        yield {}
        return
    path = folder / "auth_token"
    path.touch(0o600)
    path.write_text(_process_token())
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    try:
        # Not in our own environment: Ray has read the mode when it was imported, and sets it itself
        # if it finds none.
        yield {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    finally:
        for name in AUTHENTICATION:
            os.environ.pop(name, None)


@contextlib.contextmanager
def starting_on_loopback() -> Iterator[None]:
    """A cluster that is started within listens on loopback; other processes find it under
    LOOPBACK_ONLY.

    But for one socket of each of Serve's replicas, which wants the token.
    """
    (name,) = LOOPBACK_ONLY
    before = os.environ.get(name)
    os.environ.update(LOOPBACK_ONLY)  # which the cluster's processes inherit
    was_enabled = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # what this process has read when it imported Ray
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = was_enabled
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@functools.cache
def _process_token() -> str:
    """One for all clusters of this process: Ray reads it once."""
    return secrets.token_hex(32)
