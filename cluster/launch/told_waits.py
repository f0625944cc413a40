"""Says, while an application starts, which of its replicas wait for room in the Ray cluster."""

import contextlib
import re
import sys
import threading
from collections.abc import Iterator

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cluster.workers.placement import free_resources

POLL_SECONDS = 1.0
_WAITING = re.compile(r" has (\d+) replicas that have taken .* to be scheduled\. .* each replica: (.*?), total ")


@contextlib.contextmanager
def told_waits(app_name: str) -> Iterator[None]:
    """Within the context, a line on stderr when Serve notices that replicas of a deployment wait,
    which it does after half a minute, and one whenever their number changes.
    """
    has_ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(app_name, has_ended), name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join(2 * POLL_SECONDS)


def _tell(app_name: str, has_ended: threading.Event) -> None:
    told: dict[str, str] = {}
    while not has_ended.wait(POLL_SECONDS):
        with contextlib.suppress(RayError, RayServeException):  # of a cluster that is lost, which others report
            application = serve.status().applications.get(app_name)
            for name, deployment in {} if application is None else application.deployments.items():
                if (found := _WAITING.search(deployment.message)) and told.get(name) != found[1]:
                    told[name] = found[1]
                    print(
                        f"{found[1]} replica(s) of {name} wait for room in the Ray cluster: each needs {found[2]}; "
                        f"free are {free_resources()}",
                        file=sys.stderr,
                        flush=True,
                    )
