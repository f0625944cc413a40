"""What a report says of the machine and the command it was measured with."""

import json
import os
import sys
from datetime import UTC, datetime

from cluster.bench.environment import environment
from cluster.version import VERSION


def test_the_report_names_the_command_the_machine_and_the_versions() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert sys.orig_argv[-1] in found["command"]
    assert datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert found["machine"]["num_cpus"] == len(os.sched_getaffinity(0))
    assert found["machine"]["cpu"]
    assert found["versions"]["squadron"] == VERSION
    assert {"python", "numpy", "ray", "torch"} <= found["versions"].keys()
