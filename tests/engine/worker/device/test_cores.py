"""Cores are divided among ranks, and no core is bound to two of them."""

import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.worker.device.cores import Cores, usable_cores
from ops.cpu.library import thread_ids

ALLOWED = os.sched_getaffinity(0)
HOLD = """
import sys
from engine.worker.device.cores import Cores
cores = Cores(1, namespace=sys.argv[1])
print(cores.bound, flush=True)
sys.stdin.read()
"""
enough = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores")


@pytest.fixture
def namespace() -> str:
    return f"squadron-test-{secrets.token_hex(4)}"


@pytest.fixture
def in_thread():
    """Calls a function in a thread of its own: what is bound is the thread that calls."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda function: thread.submit(function).result()


def test_one_rank_has_every_core(in_thread, namespace):
    cores = in_thread(lambda: Cores(1, namespace=namespace))
    assert cores.num_threads == len(ALLOWED)
    assert set(cores.bound) == ALLOWED
    assert str(cores).startswith(f"{len(ALLOWED)} thread")


@enough
@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("", {"cpu.max": "50000 100000\n"}),
        ("a.service", {"cpu.max": "50000 100000\n"}),
        ("cpu", {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}),
    ],
    ids=["a container", "a service", "a container, version 1"],
)
def test_a_share_of_the_machines_time_is_as_few_cores(tmp_path, group, files):
    (tmp_path / "own").write_text("2:cpu,cpuacct:/docker/c\n0::/a.service\n")
    assert usable_cores(tmp_path, tmp_path / "own") == len(ALLOWED)
    (tmp_path / group).mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / group / name).write_text(text)
    assert usable_cores(tmp_path, tmp_path / "own") == 1


@enough
def test_ranks_share_no_core(namespace):
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first = one.submit(lambda: Cores(2, namespace=namespace)).result()
        second = other.submit(lambda: Cores(2, namespace=namespace)).result()
        assert first.bound and second.bound and not set(first.bound) & set(second.bound)
        assert one.submit(lambda: os.sched_getaffinity(0)).result() == set(first.bound)
        assert other.submit(lambda: os.sched_getaffinity(0)).result() == set(second.bound)
    assert os.sched_getaffinity(0) == ALLOWED


def test_more_ranks_than_cores_have_a_thread_each_and_are_not_bound(in_thread, namespace):
    cores = in_thread(lambda: Cores(len(ALLOWED) + 1, namespace=namespace))
    assert (cores.num_threads, cores.bound) == (1, ())
    assert str(cores) == "1 thread on cores shared with others"
    assert in_thread(lambda: os.sched_getaffinity(0)) == ALLOWED


def test_cores_of_another_engine_are_left_to_it_until_it_dies(in_thread, namespace):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, namespace], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline().strip() == str(tuple(sorted(ALLOWED)))
        assert in_thread(lambda: Cores(1, namespace=namespace)).bound == ()
        holder.kill()
    assert set(in_thread(lambda: Cores(1, namespace=namespace)).bound) == ALLOWED


@enough
def test_each_of_the_kernels_threads_has_a_core_of_its_own(in_thread, namespace):
    cores = in_thread(lambda: Cores(1, namespace=namespace))
    threads = in_thread(lambda: thread_ids(len(ALLOWED)))
    in_thread(lambda: cores.spread(threads))
    assert {tuple(os.sched_getaffinity(thread)) for thread in threads} == {(core,) for core in ALLOWED}
    in_thread(cores.release)
    assert all(os.sched_getaffinity(thread) == ALLOWED for thread in threads)


@enough
def test_threads_that_have_no_core_each_are_left_to_the_kernel(in_thread, namespace):
    cores = in_thread(lambda: Cores(1, namespace=namespace))
    threads = in_thread(lambda: thread_ids(len(ALLOWED)))
    cores.spread(threads[:1])
    assert all(os.sched_getaffinity(thread) == ALLOWED for thread in threads)


def test_release_leaves_the_thread_as_it_was(in_thread, namespace):
    cores = in_thread(lambda: Cores(1, 1, namespace=namespace))
    assert len(cores.bound) == cores.num_threads == 1
    in_thread(cores.release)
    assert in_thread(lambda: os.sched_getaffinity(0)) == ALLOWED
    assert in_thread(lambda: Cores(1, 1, namespace=namespace)).bound == cores.bound
