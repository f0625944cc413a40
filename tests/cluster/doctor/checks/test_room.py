"""Whether what is to run fits."""

from dataclasses import replace

import pytest

from cluster.doctor.checks.room import check_fits, check_gpus_seen, check_room
from tests.cluster.doctor.made import GIB, GOOD, H100, need, only, second

TWO = {"a": {"CPU": 8.0, "GPU": 2.0}, "b": {"CPU": 8.0, "GPU": 1.0}}


def test_ray_and_the_driver_agree_or_not() -> None:
    nodes = [replace(GOOD, gpus=(H100, H100)), second(gpus=())]
    found = only(list(check_gpus_seen(nodes, TWO)), "failure")
    assert found.text == "Ray counts 1 GPU(s) on 10.0.0.2, and the driver shows 0"
    assert only(list(check_gpus_seen(nodes[:1], TWO)), "ok").text == "2 NVIDIA H100"
    assert "the CPUs compute" in only(list(check_gpus_seen([GOOD], {"a": {"CPU": 8.0}})), "ok").text


def test_gpus_that_are_kept_from_ray_are_no_failure() -> None:
    """As CUDA_VISIBLE_DEVICES does on a machine that is shared."""
    found = only(list(check_gpus_seen([replace(GOOD, gpus=(H100, H100, H100))], TWO)), "warning")
    assert found.text == "Ray counts 2 GPU(s) on 10.0.0.1, of the 3 that the driver shows"
    none = {"a": {"CPU": 8.0}}
    only(list(check_gpus_seen([replace(GOOD, gpus=(H100,))], none)), "failure")


def test_gpus_that_do_not_tell_their_memory() -> None:
    shared = replace(H100, total=0, free=0)
    assert str(shared).startswith("NVIDIA H100, memory not told")
    found = only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared,))], is_serving=False)), "ok")
    assert "do not tell their memory" in found.text
    only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared, H100))], is_serving=False)), "ok")


def test_room_for_all_engines() -> None:
    assert "3 of 3 GPU(s)" in only(list(check_room([need(3, device="cuda")], TWO)), "ok").text
    found = only(list(check_room([need(2, device="cuda", tensor_parallel_size=2)], TWO)), "failure")
    assert found.text == "demo: 2 engine(s) of 2 rank(s): 4 GPU(s) are needed, and the cluster has 3"


def test_a_stages_ranks_need_one_node() -> None:
    spread = {"a": {"CPU": 8.0, "GPU": 1.0}, "b": {"CPU": 8.0, "GPU": 1.0}}
    found = only(list(check_room([need(device="cuda", tensor_parallel_size=2)], spread)), "failure")
    assert "no way to place" in found.text and "'GPU': 2.0" in found.text
    only(list(check_room([need(device="cuda", pipeline_parallel_size=2)], spread)), "ok")


def test_the_kind_of_gpu_counts() -> None:
    kinds = {name: sizes | {"accelerator_type:A100": 1.0} for name, sizes in TWO.items()}
    only(list(check_room([need(accelerator_type="A100")], kinds)), "ok")
    only(list(check_room([need(accelerator_type="H100")], kinds)), "failure")


@pytest.mark.parametrize(("total", "state"), [(80 * GIB, "ok"), (1 << 20, "failure")])
def test_weights_and_a_sequence_fit_into_the_smallest_gpu(total: int, state: str) -> None:
    nodes = [replace(GOOD, gpus=(H100, replace(H100, total=total)))]
    assert (
        "the smallest GPU offers" in only(list(check_fits([need(device="cuda")], nodes, is_serving=False)), state).text
    )


@pytest.mark.parametrize(
    ("available", "is_serving", "state"), [(48 * GIB, False, "ok"), (1 << 20, False, "failure"), (1 << 20, True, "ok")]
)
def test_memory_of_cpus(available: int, is_serving: bool, state: str) -> None:
    """What runs already has taken its own."""
    nodes = [replace(GOOD, memory_available=available)]
    found = only(list(check_fits([need(2, device="cpu")], nodes, is_serving=is_serving)), state)
    assert found.text.endswith(" are there in all" if is_serving else " are available")
