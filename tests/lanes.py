"""How `make test` deals tests out to its processes: `-n 3 --dist loadscope -p tests.lanes`.

What starts Ray waits more than it computes: two processes take that, the third one computes, and
who is through with its own kinds helps. A file is taken whole by one process: what several tests
need is started once. The shared server is started once for many files, in the process that begins
with them, and ends before a file that does not need it; another process starts a server of its own
only while many of them are left. What starts Ray in the process itself, or counts on a process
without it, comes before.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[1]
# Files, or the beginnings of their names: their tests start Ray in their own process, or count on
# one without it.
HERE = (
    "tests/cluster/workers/",
    "tests/cluster/launch/",
    "tests/cluster/weights/groups/test_update_groups",
    "tests/cluster/doctor/test_diagnosis",
    "tests/cluster/commands/operating/test_status",
    "tests/deployment/test_gcs",
    "tests/cluster/gateway/streams/test_store_actor",
    "tests/cluster/gateway/streams/test_shards_lost",
    "tests/cluster/gateway/streams/test_stream_store",
    "tests/cluster/checkpoint/test_manifest",
    "tests/end_to_end/levels/",
    "tests/end_to_end/apps/",
)
# Those whose tests start it in processes of their own.
ELSEWHERE = (
    "tests/end_to_end/",
    "tests/cluster/metrics/test_ray_export",
    "tests/cluster/commands/operating/test_doctor",
    "tests/benchmarks/gpu/serving/",
)
# First of their kind, so that nobody is left alone with one of them at the end.
LONG = (
    "tests/ops/test_interpreted.py",
    "tests/engine/worker/test_interpreted.py",
    "tests/ops/kernels/test_compiled.py",
    "tests/end_to_end/test_command.py",
)
# Last of its kind: it leaves the server as others cannot use it.
LAST = "tests/end_to_end/test_stream_resume.py"
# What each process takes, in this order; those that are not named do as the last one.
LANES = {
    "gw0": ("computing", "elsewhere", "here", "server"),
    "gw1": ("server", "elsewhere", "computing"),
    "gw2": ("here", "elsewhere", "server", "computing"),
}
MANY = 4  # files with tests of the server, for which another one is worth its start


@cache
def kind(file: str) -> str:
    """What its tests start; "server": they have the fixture of tests/end_to_end."""
    if file.startswith(HERE):
        return "here"
    if not file.startswith(ELSEWHERE):
        return "computing"
    return "server" if re.search(r"\bserver: Server\b", (ROOT / file).read_text(encoding="utf-8")) else "elsewhere"


class Lanes(LoadScopeScheduling):
    """Tests in files, and files in lanes."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would sort by numbers of tests
        self._have_server: set[str] = set()  # processes

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which a process has crashed is not run again, nor what it had run before:
        a file without tests would have the process that takes it wait for ever.
        """
        workload = self.assigned_work.pop(node)
        crashed = next((test for tests in workload.values() for test, is_done in tests.items() if not is_done), None)
        for file, tests in workload.items():
            if left := {test: False for test, is_done in tests.items() if not is_done and test != crashed}:
                self.workqueue[file] = left
        if crashed is not None:
            for other in self.assigned_work:
                self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next(node.gateway.id)
        if file is None:
            node.shutdown()
            return
        if kind(file) == "server":
            self._have_server.add(node.gateway.id)
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _next(self, process: str) -> str | None:
        """The file that a process takes next, if there is one for it."""
        order = LANES.get(process, LANES["gw2"])
        num_left = sum(kind(file) == "server" for file in self.workqueue)
        others = self._have_server & {node.gateway.id for node in self.nodes} - {process}
        if others and process not in self._have_server and num_left < MANY:
            order = tuple(each for each in order if each != "server")
        files = [file for file in self.workqueue if kind(file) in order]
        return min(files, key=lambda file: (order.index(kind(file)), file not in LONG, file == LAST), default=None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    return Lanes(config, log)
