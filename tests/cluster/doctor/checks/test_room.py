"""Whether what is to run fits."""

from dataclasses import replace

import pytest

from cluster.doctor.checks.room import check_fits, check_gpus_seen, check_room
from cluster.workers.nodes import Node
from tests.cluster.doctor.made import GIB, GOOD, H100, need, only, second

TWO = {"a": {"CPU": 8.0, "GPU": 2.0}, "b": {"CPU": 8.0, "GPU": 1.0}}
ONE = [Node("a", "10.0.0.1", {"CPU": 8.0}, {})]


def nodes_with(resources: dict[str, dict[str, float]], **labels: dict[str, str]) -> list[Node]:
    return [Node(name, "", sizes, labels.get(name, {})) for name, sizes in resources.items()]


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
    found = only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared,))], ONE, is_serving=False)), "ok")
    assert "do not tell their memory" in found.text
    only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared, H100))], ONE, is_serving=False)), "ok")


def test_room_for_all_engines() -> None:
    assert "3 of 3 GPU(s)" in only(list(check_room([need(3, device="cuda")], nodes_with(TWO))), "ok").text
    found = only(list(check_room([need(2, device="cuda", tensor_parallel_size=2)], nodes_with(TWO))), "failure")
    assert found.text == "demo: 2 engine(s) of 2 rank(s): 4 GPU(s) are needed, and the cluster has 3"


def test_a_stages_ranks_need_one_node() -> None:
    spread = {"a": {"CPU": 8.0, "GPU": 1.0}, "b": {"CPU": 8.0, "GPU": 1.0}}
    found = only(list(check_room([need(device="cuda", tensor_parallel_size=2)], nodes_with(spread))), "failure")
    assert found.text == "1 engine(s) of demo need 1 place(s) of 2 GPU(s) on one node, and the cluster has 0"
    small = {name: {"CPU": 0.25, "GPU": 2.0} for name in "ab"}
    found = only(list(check_room([need(device="cuda", tensor_parallel_size=2)], nodes_with(small))), "failure")
    assert "no way to place" in found.text and "'GPU': 2.0" in found.text
    only(list(check_room([need(device="cuda", pipeline_parallel_size=2)], nodes_with(spread))), "ok")


def test_the_kind_of_gpu_counts() -> None:
    kinds = {name: sizes | {"accelerator_type:A100": 1.0} for name, sizes in TWO.items()}
    only(list(check_room([need(accelerator_type="A100")], nodes_with(kinds))), "ok")
    found = only(list(check_room([need(accelerator_type="H100")], nodes_with(kinds))), "failure")
    assert found.text.endswith("1 GPU(s) on one node with accelerator_type=H100, and the cluster has 0")


def test_labels_count() -> None:
    nodes = nodes_with(TWO, a={"region": "eu"}, b={"region": "us"})
    both = {"device": "cuda", "tensor_parallel_size": 2}
    only(list(check_room([need(node_labels={"region": "eu"}, **both)], nodes)), "ok")
    found = only(list(check_room([need(node_labels={"region": "us"}, **both)], nodes)), "failure")
    assert found.text.endswith("2 GPU(s) on one node with node_labels={'region': 'us'}, and the cluster has 0")


def test_only_gpus_of_the_kind_and_the_labels_have_to_be_large_enough() -> None:
    small = replace(H100, total=1 << 20)
    facts = [replace(GOOD, gpus=(H100,)), second(gpus=(small,))]
    nodes = nodes_with(
        {"a": {"GPU": 1.0, "accelerator_type:H100": 1.0}, "b": {"GPU": 1.0, "accelerator_type:A10G": 1.0}},
        a={"region": "eu"},
        b={"region": "us"},
    )
    for wish, state in (
        ({"accelerator_type": "H100"}, "ok"),
        ({"node_labels": {"region": "eu"}, "device": "cuda"}, "ok"),
        ({"accelerator_type": "A10G"}, "failure"),
        ({"device": "cuda"}, "failure"),
    ):
        only(list(check_fits([need(**wish)], facts, nodes, is_serving=False)), state)


@pytest.mark.parametrize(("total", "state"), [(80 * GIB, "ok"), (1 << 20, "failure")])
def test_weights_and_a_sequence_fit_into_the_smallest_gpu(total: int, state: str) -> None:
    nodes = [replace(GOOD, gpus=(H100, replace(H100, total=total)))]
    assert (
        "the smallest GPU offers"
        in only(list(check_fits([need(device="cuda")], nodes, ONE, is_serving=False)), state).text
    )


@pytest.mark.parametrize(
    ("available", "is_serving", "state"), [(48 * GIB, False, "ok"), (1 << 20, False, "failure"), (1 << 20, True, "ok")]
)
def test_memory_of_cpus(available: int, is_serving: bool, state: str) -> None:
    """What runs already has taken its own."""
    nodes = [replace(GOOD, memory_available=available)]
    found = only(list(check_fits([need(2, device="cpu")], nodes, ONE, is_serving=is_serving)), state)
    assert found.text.endswith(" are there in all" if is_serving else " are available")
