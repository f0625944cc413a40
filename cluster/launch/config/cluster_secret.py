"""A secret of a Ray cluster's own, by which engines of one model know each other across deploys:
each `serve deploy` builds the application in another process, and its engines go on with what
those of the last one have left.
"""

import secrets

import ray

from cluster import owner
from cluster.weights import head

_KEY = b"secret"


def cluster_secret() -> str:
    """The same for all who ask in one cluster; this process's own, where that is none, or its head
    does not answer.
    """
    if not ray.is_initialized():
        return owner.this_process().token
    try:
        head.claim(_KEY, secrets.token_hex(32).encode())
        found = head.read(_KEY)
    except head.NoRecord:
        found = None
    return owner.this_process().token if found is None else found.decode()
