"""What must be alike on all nodes."""

from dataclasses import replace

from cluster.doctor.checks.same import check_code, check_gpu_kinds, check_networks, check_versions
from cluster.doctor.facts.interfaces import Interface
from tests.cluster.doctor.made import GOOD, H100, only, second


def test_equal_nodes_are_well() -> None:
    nodes = [GOOD, second()]
    assert only(list(check_versions(nodes)), "ok").text.endswith("ray 2.60.0, torch 2.13.0 on 2 nodes")
    assert only(list(check_code(nodes)), "ok").text == "c0de on 2 nodes"
    assert [*check_gpu_kinds(nodes), *check_networks(nodes)] == []


def test_another_patch_level_is_named_with_both_nodes() -> None:
    other = second(versions=GOOD.versions | {"ray": "2.60.1"})
    found = only(list(check_versions([GOOD, other])), "failure")
    assert found.text == "ray is 2.60.1 on 10.0.0.2 and 2.60.0 on 10.0.0.1"
    assert "constraints.txt" in found.remedy and "another patch level of itself or of Python" in found.remedy


def test_a_missing_package_is_another_version() -> None:
    versions = {name: version for name, version in GOOD.versions.items() if name != "torch"}
    assert only(list(check_versions([GOOD, second(versions=versions)])), "failure").text.startswith("torch is none on")


def test_other_sources_of_the_same_version() -> None:
    assert "(beef) than 10.0.0.1 (c0de)" in only(list(check_code([GOOD, second(code="beef")])), "failure").text


def test_different_gpus_and_drivers() -> None:
    other = second(gpus=(replace(H100, name="NVIDIA A100", driver="550.2"),))
    kinds, drivers = check_gpu_kinds([replace(GOOD, gpus=(H100,)), other])
    assert "NVIDIA A100, NVIDIA H100" in kinds.text and "accelerator_type" in kinds.remedy
    assert drivers.text == "different drivers: 550.2, 570.1"


def test_different_mtus() -> None:
    other = second(interfaces=(Interface("eth0", ("10.0.0.2",), 9000),))
    assert "1500, 9000" in only(list(check_networks([GOOD, other])), "warning").text
