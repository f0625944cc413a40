"""How `make test` deals tests out to its processes: `-n 2 --dist loadgroup -p tests.lanes`.

What starts Ray waits more than it computes: one process takes that, the other computes, and who is
through with its own kind helps. What is started for several tests is started once: a file is taken
whole by one process, and so are all tests of one `xdist_group` (`tests/conftest.py`). Each process
keeps to the order of files: the shared server lasts until its process ends, and a process has one
Ray, so those who start another in it come before.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from tests.conftest import WAITING

COMPUTES = "gw0"
# First, so that nobody is left alone with one of them at the end; none is cut into parts.
LONG = (
    "tests/ops/test_interpreted.py",
    "tests/engine/worker/test_interpreted.py",
    "tests/ops/kernels/test_compiled.py",
)


class Lanes(LoadGroupScheduling):
    """Tests in units, and units in two lanes."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would sort by numbers of tests

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.partition("::")[0] if group == nodeid else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = node.gateway.id != COMPUTES
        units = sorted(self.workqueue, key=lambda unit: (unit.startswith(WAITING) != waits, unit not in LONG))
        self.workqueue.move_to_end(units[0], last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    return Lanes(config, log)
