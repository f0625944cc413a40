"""By name HAProxy tells each server whom it means, so that a process which has the port of another
one (of an ended gateway, or of another cluster's on the same machine) does not answer for it.
"""

import re

# In every request and check of HAProxy, which replaces a client's. A process of another name ends
# the connection without an answer, and HAProxy asks the next server.
SERVER = "squadron-server"


def server_name(actor_name: str) -> str:
    """As Serve's manager names this actor in HAProxy's configuration. No other actor has the name,
    on whatever cluster: a replica's has its random id in it, and a proxy's its node's.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", actor_name.replace("#", "-").replace("/", "."))
