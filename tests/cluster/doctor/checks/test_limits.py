"""Each node by itself."""

from dataclasses import replace

import pytest

from cluster.doctor.checks.limits import check_interfaces, check_memory, check_processes, check_shm
from cluster.doctor.facts.interfaces import Interface
from tests.cluster.doctor.made import GIB, GOOD, H100, only, second


def test_good_nodes() -> None:
    nodes = [GOOD, second()]
    for check in (check_shm, check_memory, check_processes, check_interfaces):
        only(list(check(nodes)), "ok")


def test_dockers_shared_memory_fails_with_gpus_and_is_slow_without() -> None:
    small = second(shm_total=64 << 20, shm_free=64 << 20)
    assert only(list(check_shm([small])), "warning").text.startswith("/dev/shm of 10.0.0.2 has 64 MiB free of 64 MiB")
    found = only(list(check_shm([replace(small, gpus=(H100,))])), "failure")
    assert "1 GiB are needed" in found.text and "--shm-size" in found.remedy and "emptyDir" in found.remedy


def test_memory() -> None:
    found = only(list(check_memory([GOOD, second(memory_available=GIB // 4)])), "failure")
    assert found.text.startswith("10.0.0.2 has 256 MiB available of 64 GiB")


def test_few_files_and_niceness() -> None:
    files, nice = check_processes([second(open_files=1024, niceness=15)])
    assert "may open 1024 files" in files.text and "ulimit -n" in files.remedy
    assert "nice 15" in nice.text and "RAY_worker_niceness=0" in nice.remedy


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"address": "192.0.2.7"}, "no interface of 192.0.2.7 has this address; there are lo 127.0.0.1, MTU 65536"),
        ({"address": "127.0.0.1"}, "127.0.0.1 is loopback's, and there are other nodes"),
        (
            {"environment": {"NCCL_SOCKET_IFNAME": "ib0,eth"}},
            "NCCL_SOCKET_IFNAME=ib0,eth on 10.0.0.2, which has eth0, lo",
        ),
    ],
)
def test_interfaces(changes: dict[str, object], text: str) -> None:
    assert only(list(check_interfaces([GOOD, second(**changes)])), "failure").text.startswith(text)


def test_loopback_is_good_for_one_node() -> None:
    alone = replace(GOOD, address="127.0.0.1", interfaces=(Interface("lo", ("127.0.0.1",), 65536),))
    assert only(list(check_interfaces([alone])), "ok").text == "the nodes' addresses are those of lo"
