"""Interfaces of a network namespace of the test's own, of which any user is root."""

import shutil
import subprocess
import sys

import pytest

IN_NAMESPACE = ("unshare", "--map-root-user", "--net")


@pytest.mark.parametrize("name", ["größe0", "网卡0"])
def test_names_need_not_be_ascii(name: str) -> None:
    if shutil.which("ip") is None or subprocess.run([*IN_NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces can be made here")
    look = (
        "from cluster.doctor.facts.interfaces import read_interfaces; print(*map(ascii, map(str, read_interfaces())))"
    )
    begin = f'ip link set lo name {name} && ip link set {name} up && exec "$@"'
    done = subprocess.run(
        [*IN_NAMESPACE, "sh", "-c", begin, "sh", sys.executable, "-c", look], capture_output=True, text=True
    )
    assert done.stdout.startswith(ascii(f"{name} 127.0.0.1, ::1, MTU")[:-1]), done.stderr
