"""Whether what is to run has room."""

from dataclasses import replace

from cluster.doctor.checks.room import check_gpus_seen, check_room
from tests.cluster.doctor.made import GOOD, H100, need, nodes_with, only, second

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
