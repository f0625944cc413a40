"""Each node by itself."""

from dataclasses import replace

import pytest

from cluster.doctor.checks.limits import (
    check_interfaces,
    check_memory,
    check_processes,
    check_shared,
    check_shm,
)
from cluster.doctor.facts.interfaces import Interface
from cluster.doctor.finding import Finding
from cluster.doctor.need import Need
from cluster.launch.config.model_config import ModelConfig
from tests.cluster.doctor.made import GIB, GOOD, H100, need, nodes_with, only, second


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
    assert "nice 15" in nice.text
    assert nice.remedy == "set RAY_worker_niceness=0 before `ray start`, and do not run that by `nice`"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"address": "192.0.2.7"}, "no interface of 192.0.2.7 has this address; there are lo 127.0.0.1, MTU 65536"),
        ({"address": "127.0.0.1"}, "127.0.0.1 is loopback's, and there are other nodes"),
        (
            {"address": "::1", "interfaces": (Interface("lo", ("127.0.0.1", "::1"), 65536),)},
            "::1 is loopback's, and there are other nodes",
        ),
        ({"environment": {"GLOO_SOCKET_IFNAME": "eth"}}, "GLOO_SOCKET_IFNAME=eth on 10.0.0.2, which has eth0, lo"),
        ({"environment": {"GLOO_SOCKET_IFNAME": "^lo"}}, "GLOO_SOCKET_IFNAME=^lo on 10.0.0.2, which has eth0, lo"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "=eth"}}, "NCCL_SOCKET_IFNAME==eth on 10.0.0.2, which has eth0, lo"),
        (
            {"environment": {"NCCL_SOCKET_IFNAME": "ib0,eth"}},
            "NCCL_SOCKET_IFNAME=ib0,eth on 10.0.0.2, which has eth0, lo",
        ),
    ],
)
def test_interfaces(changes: dict[str, object], text: str) -> None:
    assert only(list(check_interfaces([GOOD, second(**changes)])), "failure").text.startswith(text)


@pytest.mark.parametrize("wanted", ["eth", "=eth0", "=eth0,lo", "eth0,lo"])
def test_interfaces_that_nccl_is_to_take(wanted: str) -> None:
    only(list(check_interfaces([GOOD, second(environment={"NCCL_SOCKET_IFNAME": wanted})])), "ok")


def test_interfaces_that_nccl_is_to_leave_out_need_not_exist() -> None:
    node = second(environment={"NCCL_SOCKET_IFNAME": "^docker,virbr0"})
    only(list(check_interfaces([GOOD, node])), "ok")


def test_loopback_is_good_for_one_node() -> None:
    alone = replace(GOOD, address="127.0.0.1", interfaces=(Interface("lo", ("127.0.0.1",), 65536),))
    assert only(list(check_interfaces([alone])), "ok").text == "the nodes' addresses are those of lo"


HANDING_OVER = ModelConfig(engine={}, num_prefill_engines=1)


def of_shared(shm: int, *needs: Need) -> list[Finding]:
    facts = [replace(GOOD, shm_total=shm * GIB, shm_free=shm * GIB)]
    return list(check_shared(needs, facts, nodes_with({"a": {"CPU": 8.0, "GPU": 1.0}})))


def test_shared_memory_that_blocks_are_handed_over_in() -> None:
    on_gpu = need(own=HANDING_OVER, device="cuda")
    assert (on_gpu.drain_bytes, on_gpu.prefill_bytes) == (4 * GIB, 4 * GIB)
    found = only(of_shared(2, on_gpu), "warning")
    assert "has 2 GiB free of 2 GiB; blocks that engines hand over may take 8 GiB" in found.text
    assert "give it 16 GiB" in found.remedy and "drain_memory" in found.remedy
    only(of_shared(7, on_gpu), "warning")
    assert of_shared(8, on_gpu) == []
    only(of_shared(9, on_gpu, need(device="cuda", served_model_name="other")), "warning")


def test_an_engine_leaves_no_more_than_its_cache_nor_where_it_does_not() -> None:
    on_cpu = need(device="cpu")
    assert of_shared(1, on_cpu) == [], "its cache has 8 MiB"
    given = need(own=HANDING_OVER, device="cuda", kv_offloading_path="/tmp/blocks", swap_space=1)
    assert (given.drain_bytes, given.prefill_bytes) == (0, 0)
    without = need(own=ModelConfig(engine={}, drain_memory=0), device="cuda")
    assert of_shared(1, given, without) == []
    elsewhere = need(own=HANDING_OVER, device="cuda", node_labels={"region": "eu"})
    assert of_shared(1, elsewhere) == []
