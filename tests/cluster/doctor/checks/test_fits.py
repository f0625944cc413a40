"""Whether weights and caches fit, by where ranks may be, all engines together."""

from dataclasses import replace

import pytest

from cluster.doctor.checks.fits import check_fits
from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.need import Need
from cluster.workers.nodes import Node
from tests.cluster.doctor.made import GIB, GOOD, H100, need, nodes_with, only, second

ONE = [Node("a", "10.0.0.1", {"CPU": 8.0}, {})]


def test_gpus_that_do_not_tell_their_memory() -> None:
    shared = replace(H100, total=0, free=0)
    assert str(shared).startswith("NVIDIA H100, memory not told")
    found = only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared,))], ONE, is_serving=False)), "ok")
    assert "do not tell their memory" in found.text
    only(list(check_fits([need(device="cuda")], [replace(GOOD, gpus=(shared, H100))], ONE, is_serving=False)), "ok")


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


def test_what_has_no_node_or_no_gpu_at_all_is_not_too_large() -> None:
    """What lacks is told by others, whose remedies help."""
    for wish in ({"device": "cuda"}, {"device": "cpu", "node_labels": {"region": "eu"}}):
        assert list(check_fits([need(**wish)], [GOOD], ONE, is_serving=False)) == []
    both = [need(device="cpu", node_labels={"region": "eu"}), need(device="cpu")]
    assert str(both[1]) in only(list(check_fits(both, [GOOD], ONE, is_serving=False)), "ok").text


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


def of_rank(size: int, num_engines: int = 1, **changes: object) -> Need:
    """Whose ranks need so many bytes each."""
    made = need(num_engines, device="cpu", **changes)
    return replace(made, plan=replace(made.plan, weight_bytes=0, cache_bytes=size, adapter_bytes=0))


def two_nodes(gib: int, num_cpus: float = 8.0) -> tuple[list[NodeFacts], list[Node]]:
    facts = [replace(GOOD, memory_available=gib * GIB), second(memory_available=gib * GIB)]
    return facts, nodes_with({"a": {"CPU": num_cpus}, "b": {"CPU": num_cpus}})


def test_a_rank_is_on_one_node() -> None:
    facts, nodes = two_nodes(8)
    found = only(list(check_fits([of_rank(12 * GIB)], facts, nodes, is_serving=False)), "failure")
    assert found.text == (
        "demo: 1 engine(s) of 1 rank(s): 12 GiB of memory are needed at least; no way to place 1 x 12 GiB, each on one "
        "node: 8 GiB on 10.0.0.1, 8 GiB on 10.0.0.2 are available"
    )
    only(list(check_fits([of_rank(8 * GIB)], facts, nodes, is_serving=False)), "ok")


def test_ranks_of_a_stage_share_a_node_and_stages_do_not_have_to() -> None:
    facts, nodes = two_nodes(8, num_cpus=0.5)
    only(list(check_fits([of_rank(6 * GIB, tensor_parallel_size=2)], facts, nodes, is_serving=False)), "failure")
    nodes = nodes_with({"a": {"CPU": 0.25}, "b": {"CPU": 0.25}})
    only(list(check_fits([of_rank(6 * GIB, pipeline_parallel_size=2)], facts, nodes, is_serving=False)), "ok")


def test_all_models_together() -> None:
    facts, nodes = [replace(GOOD, memory_available=16 * GIB)], ONE
    two = [of_rank(12 * GIB), of_rank(12 * GIB, served_model_name="other")]
    for each in two:
        only(list(check_fits([each], facts, nodes, is_serving=False)), "ok")
    found = only(list(check_fits(two, facts, nodes, is_serving=False)), "failure")
    assert found.text.startswith("demo: 1 engine(s) of 1 rank(s); other: 1 engine(s) of 1 rank(s): 24 GiB of memory")
    assert "2 x 12 GiB" in found.text


def test_what_fits_apart_only_is_warned_of_unless_cpus_keep_it_apart() -> None:
    """Ray places by CPUs: memory is not counted."""
    facts, nodes = two_nodes(16)
    found = only(list(check_fits([of_rank(12 * GIB, 2)], facts, nodes, is_serving=False)), "warning")
    assert "Ray counts no memory, and may place 24 GiB on 10.0.0.1, where 16 GiB are available" in found.text
    assert "node_labels" in found.remedy
    facts, nodes = two_nodes(16, num_cpus=0.25)
    only(list(check_fits([of_rank(12 * GIB, 2)], facts, nodes, is_serving=False)), "ok")


def test_labels_say_where_memory_has_to_be() -> None:
    facts = [replace(GOOD, memory_available=16 * GIB), second(memory_available=8 * GIB)]
    nodes = nodes_with({"a": {"CPU": 8.0}, "b": {"CPU": 8.0}}, a={"region": "eu"}, b={"region": "us"})
    for region, state in (("eu", "ok"), ("us", "failure")):
        wanted = of_rank(12 * GIB, node_labels={"region": region})
        only(list(check_fits([wanted], facts, nodes, is_serving=False)), state)
    both = [of_rank(6 * GIB, 2), of_rank(6 * GIB, node_labels={"region": "us"})]
    found = only(list(check_fits(both, facts, nodes, is_serving=False)), "warning")
    assert "18 GiB on 10.0.0.2" in found.text
