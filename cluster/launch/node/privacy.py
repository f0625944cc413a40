"""Keeps other users, machines and clusters out of a Ray cluster of this machine: a token, loopback,
and nothing stored (beside its private folder).
"""

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ray._private import ray_constants

AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
STORAGE = ("RAY_gcs_storage", "RAY_gcs_storage_path", "RAY_REDIS_ADDRESS")
# Ray's own switch for systems whose firewall asks about every socket: it makes a cluster without
# other nodes.
LOOPBACK_ONLY = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}


@contextlib.contextmanager
def token_authentication(folder: Path) -> Iterator[dict[str, str]]:
    """Make a token for a new cluster; returns the environment that another process of this user
    needs to connect.

    The token is stored in `folder`, which other users cannot enter. Nothing is done if the
    environment already configures authentication.
    """
    if not os.environ.keys().isdisjoint(AUTHENTICATION):
        yield {}
        return
    path = folder / "auth_token"
    path.touch(0o600)
    path.write_text(_process_token())
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    try:
        # Not in our own environment: Ray read the mode when it was imported, and sets it itself if
        # there is none.
        yield {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    finally:
        for name in AUTHENTICATION:
            os.environ.pop(name, None)


@contextlib.contextmanager
def starting_on_loopback() -> Iterator[None]:
    """A cluster that is started within the context listens on loopback; other processes connect to
    it with LOOPBACK_ONLY. The exception is one socket per Serve replica, which requires the token.
    """
    (name,) = LOOPBACK_ONLY
    before = os.environ.get(name)
    os.environ.update(LOOPBACK_ONLY)  # inherited by the cluster's processes
    was_enabled = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # what this process read when it imported Ray
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = was_enabled
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def starting_without_a_store() -> Iterator[None]:
    """A cluster that is started within the context is a new one, and ends for good. On a cluster's
    node, the environment says where that one's GCS stores what it knows, for its next start.
    """
    before = {name: os.environ.pop(name) for name in STORAGE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@functools.cache
def _process_token() -> str:
    """One for all clusters of this process, because Ray reads it once."""
    return secrets.token_hex(32)
