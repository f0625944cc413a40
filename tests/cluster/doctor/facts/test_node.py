"""This machine."""

import socket

from cluster.doctor.facts.gpus import read_gpus
from cluster.doctor.facts.interfaces import read_interfaces
from cluster.doctor.facts.node import read_node
from cluster.launch.machine import num_gpus


def test_this_machine() -> None:
    node = read_node("id", "127.0.0.1")
    assert (node.node_id, node.host) == ("id", socket.gethostname())
    assert 0 < node.memory_available <= node.memory_total
    assert 0 < node.shm_free <= node.shm_total
    assert node.num_cpus > 0 and node.cpu and node.open_files > 0


def test_loopback_is_an_interface() -> None:
    (loopback,) = (each for each in read_interfaces() if each.name == "lo")
    assert "127.0.0.1" in loopback.addresses and loopback.mtu > 0


def test_gpus_are_those_that_ray_finds() -> None:
    assert len(read_gpus()) >= num_gpus()
