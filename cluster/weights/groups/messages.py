"""What trainers, gateways and receivers tell each other of weights that are broadcast."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ray import ObjectRef


class Meeting(NamedTuple):
    """Where the members of a group meet: at a `TCPStore` of the trainer's."""

    group_name: str
    host: str
    port: int
    backend: str  # of DEVICES
    seconds: float  # for all to come, and for each tensor


DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # by torch's names, where each backend has tensors


class Group(NamedTuple):
    """That a receiver is in."""

    size: int  # the trainer counted in
    number: int  # of those that the receiver was to join: a later one may have the same name


class Offered(NamedTuple):
    """A tensor to come."""

    dtype: str  # torch's name for it
    shape: tuple[int, ...]
    sha256: str | None = None  # of its bytes, in hexadecimal; None: what comes is taken


class Offer(NamedTuple):
    """`tensors`: in the order in which they will be broadcast."""

    group_name: str
    tensors: Mapping[str, Offered]


class Received(NamedTuple):
    """On one node. `problem`: one line on why it has not all, and then nothing else."""

    node_id: str
    refs: Mapping[str, "ObjectRef[Any]"]
    digest: str
    problem: str | None = None
