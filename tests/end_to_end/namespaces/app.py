"""An application on machines of namespaces: the gateway on the head, its engines on the others."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.end_to_end.chaos.app import app_args
from tests.end_to_end.chaos.options import NotPossibleHere
from tests.end_to_end.chaos.processes import ENGINE, SERVING, find
from tests.end_to_end.namespaces.machines import Machine, enter, is_inside, why_not
from tests.end_to_end.namespaces.ray_nodes import ENGINES, HEAD, HTTP_PORT, RayNodes, eventually

KEPT_LOGS = "/tmp"
ENGINE_NAME, GATEWAY_NAME = "EngineDeployment", "GatewayDeployment"


@dataclass(slots=True)
class App:
    """`nodes` change as machines are lost and added."""

    nodes: RayNodes
    apart: str | None  # see `RayNodes.deploy`
    next_number: int = HEAD + 1

    @property
    def url(self) -> str:
        """At the head's door."""
        return url_of(self.nodes.head)

    def with_engine(self) -> list[Machine]:
        """Those on which an engine's driver is."""
        return [machine for machine in self.nodes.workers.values() if find(ENGINE, machine.process.pid)]

    def with_ranks(self) -> list[Machine]:
        """Those on which processes of ranks are, but no engine's driver."""
        others = [machine for machine in self.nodes.workers.values() if machine not in self.with_engine()]
        return [machine for machine in others if find(SERVING, machine.process.pid)]

    def add_worker(self) -> Machine:
        number, self.next_number = self.next_number, self.next_number + 1
        return self.nodes.add_worker(f"worker{number}", number)

    def lose(self, machine: Machine) -> None:
        """Without grace."""
        del self.nodes.workers[machine.name]
        machine.lose()

    def change(self, args: dict[str, Any]) -> None:
        """Returns once Serve has all as it is to be."""
        self.nodes.deploy(args, apart=self.apart)
        eventually(self.nodes.is_running)

    def keep_logs(self) -> None:
        """Ray's, of the machines that are there."""
        folder = tempfile.mkdtemp(prefix="squadron-nodes-", dir=KEPT_LOGS)
        for machine in self.nodes.machines():
            for logs in (machine.root / "tmp/ray").glob("session_2*/logs"):  # the link beside them points to our /tmp
                subprocess.run(["cp", "-r", f"{logs}/", f"{folder}/{machine.name}"], check=False)
        print(f"what Ray logged: {folder}", flush=True)


def url_of(machine: Machine) -> str:
    """Of the proxy on it."""
    return f"http://{machine.address}:{HTTP_PORT}"


def on_nodes(engine: dict[str, Any], **more: Any) -> dict[str, Any]:
    """For build_app: see `app_args`; engines on workers alone. Requests wait for the next node,
    however long a queue that makes. Needs `inside`.
    """
    return app_args(engine | {"node_labels": ENGINES}, insecure_no_key=True, max_queue_seconds=0, **more)


def inside() -> None:
    """Returns in namespaces: see `enter`. Raises NotPossibleHere."""
    if not is_inside() and (reason := why_not()):
        raise NotPossibleHere(reason)
    enter()


@contextlib.contextmanager
def running(args: dict[str, Any], num_workers: int, *, apart: str | None = None) -> Iterator[App]:
    """The application, ready, with a gateway on the head, or one on each node if those are `apart`.
    If the context is left by an exception, what Ray logged is kept, and the place printed.
    """
    app = App(RayNodes(), apart)
    try:
        app.nodes.start_head()
        if apart != GATEWAY_NAME:
            app.nodes.deploy(args, apart=apart)  # no other node is there that a gateway could be placed on
        for _ in range(num_workers):
            app.add_worker()
        eventually(lambda: len(app.nodes.alive()) == 1 + num_workers)
        if apart == GATEWAY_NAME:
            app.nodes.deploy(args, apart=apart)
        eventually(app.nodes.is_running)
        yield app
    except BaseException:
        app.keep_logs()
        raise
    finally:
        for machine in app.nodes.machines():
            machine.end()
