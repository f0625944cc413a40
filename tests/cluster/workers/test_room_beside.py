"""Whether a second engine has room, by what is free on each node."""

import threading

import pytest
import ray

from cluster.memory import human
from cluster.workers import room_beside
from cluster.workers.nodes_memory import bytes_per_block
from cluster.workers.room_beside import PROCESS_BYTES, fit, lacking, memory_bytes, still_lacking
from tests.cluster.workers.ranks import make_config


@pytest.mark.parametrize(
    ("bundles", "nodes", "has_room"),
    [
        ([{"CPU": 1.0}], [{"CPU": 1.0}], True),
        ([{"CPU": 1.0}], [{"CPU": 0.9}, {"CPU": 0.9}], False),
        ([{"CPU": 0.25}, {"CPU": 1.0}], [{"CPU": 0.5}, {"CPU": 1.0}], True),
        ([{"CPU": 0.25}, {"CPU": 1.0}], [{"CPU": 1.0}], False),
        ([{"CPU": 0.25, "GPU": 2.0}] * 2, [{"CPU": 9.0, "GPU": 3.0}, {"CPU": 9.0, "GPU": 2.0}], True),
        ([{"CPU": 0.25, "GPU": 2.0}] * 2, [{"CPU": 9.0, "GPU": 3.0}, {"CPU": 9.0}], False),
        ([{"CPU": 0.25, "GPU": 0.0}], [{"memory": 5.0}, {"CPU": 0.25}], True),
        ([{"CPU": 0.25}], [], False),
    ],
)
def test_every_part_needs_a_node(
    bundles: list[dict[str, float]], nodes: list[dict[str, float]], has_room: bool
) -> None:
    assert fit(bundles, nodes) is has_room


def test_memory_is_that_of_all_ranks_and_their_processes() -> None:
    alone, two = make_config(), make_config(tensor_parallel_size=2)
    assert memory_bytes(alone, 50) - memory_bytes(alone, 40) == 10 * bytes_per_block(alone)
    assert memory_bytes(alone, 0) > PROCESS_BYTES
    assert memory_bytes(two, 0) > 3 * PROCESS_BYTES


def test_what_is_lacking_is_named(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node of four CPUs."""
    assert lacking(make_config(), 100) is None
    lack = lacking(make_config(tensor_parallel_size=16), 100)
    assert lack == "it needs 0 GPU(s) and 4.25 CPU(s), each part on one node, and free are 0 GPU(s) and 4 CPU(s)"
    monkeypatch.setattr("cluster.workers.room_beside.available_memory", lambda: 5 << 20)
    needed = human(memory_bytes(make_config(), 100))
    assert lacking(make_config(), 100) == f"it needs {needed} of memory, and 5 MiB are available here"


def test_only_nodes_on_which_it_may_be_have_room(cluster: None) -> None:
    here = ray.get_runtime_context().get_node_id()
    assert lacking(make_config(), 100, full_nodes={"another"}) is None
    nothing = "it needs 0 GPU(s) and 0.25 CPU(s), each part on one node, and free are 0 GPU(s) and 0 CPU(s)"
    assert lacking(make_config(), 100, full_nodes={here}) == nothing
    assert lacking(make_config(node_labels={"region": "eu"}), 100) == nothing


async def test_room_that_ray_tells_of_late_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_beside, "LOOK_SECONDS", 0.0)
    found = iter(["it needs a CPU", "it needs a CPU", None])
    assert await still_lacking(lambda: next(found)) is None


async def test_what_is_lacking_all_the_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_beside, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(room_beside, "ROOM_SECONDS", 0.1)
    assert await still_lacking(lambda: "it needs a CPU") == "it needs a CPU"


async def test_ray_that_says_nothing_or_fails_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_beside, "ROOM_SECONDS", 0.1)
    said = threading.Event()

    def hang() -> None:
        said.wait()

    assert await still_lacking(hang) == "Ray did not say within 0.1 s what is free"
    said.set()

    def fail() -> None:
        raise ConnectionError("the GCS is gone")

    assert await still_lacking(fail) == "it is not known what is free: ConnectionError: the GCS is gone"
