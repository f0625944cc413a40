"""Chooses what all ranks compute with: one backend at one level, the best that all of them support,
or an error that names the rank that does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.checkpoint.fingerprint import Offer, Sample
from engine.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks of an engine compute with, in every epoch."""

    level: str
    arithmetic: Mapping[str, str]


def agree(offers: Sequence[Offer], nodes: Sequence[str], before: str | None) -> str:
    """The level for all ranks; `before`: the level of the engine's earlier epochs. Raises
    InvalidConfig.
    """
    backends = {offer.backend for offer in offers}
    if len(backends) > 1:
        rank, slow = min(enumerate(offers), key=lambda offer: offer[1].reason is None)
        raise InvalidConfig(
            f"worker {rank} on node {nodes[rank]} can only use the {slow.backend} backend, other workers use another, "
            f"and their results would differ: {slow.reason}; ops_backend={slow.backend} works on all"
        )
    common = [level for level in offers[0].levels if all(level in offer.levels for offer in offers)]
    if before is not None:
        common = [level for level in common if level == before]
    if not common:
        had = "" if before is None else f", where {before} was used so far"
        can = "; ".join(
            f"worker {rank} on node {nodes[rank]} {' or '.join(offer.levels)}" for rank, offer in enumerate(offers)
        )
        raise InvalidConfig(f"the ranks have no level in common{had}: {can}")
    return common[0]


def agreed_on(
    level: str,
    arithmetics: Sequence[Mapping[str, str]],
    samples: Sequence[Sample],
    nodes: Sequence[str],
    before: Agreed | None,
) -> Agreed:
    """What the ranks report, put together; `before`: of earlier epochs. Raises InvalidConfig if
    they differ.
    """
    sample = whole_sample(samples, nodes)
    known = [
        arithmetic | {"weights": replace(own, files=sample.files).digest}
        for arithmetic, own in zip(map(dict, arithmetics), samples, strict=True)
    ]
    return Agreed(level, common_arithmetic(known, nodes, before))


def whole_sample(samples: Sequence[Sample], nodes: Sequence[str]) -> Sample:
    """Of the weights' files, which nodes may have in part; raises InvalidConfig if two nodes differ
    in one that both have, or none has it.
    """
    whole = samples[0].and_of(samples[1:])
    for rank, sample in enumerate(samples):
        for name, digest in sample.files.items():
            if digest not in (None, whole.files.get(name)):
                raise InvalidConfig(
                    f"the workers' weights differ: {name} on worker {rank}, node {nodes[rank]}, is not the one that "
                    "another node has"
                )
    for name, digest in whole.files.items():
        if digest is None:
            raise InvalidConfig(f"{name} is on no worker's node")
    return whole


def common_arithmetic(
    arithmetics: Sequence[Mapping[str, str]], nodes: Sequence[str], before: Agreed | None = None
) -> Mapping[str, str]:
    """The arithmetic that all ranks report; raises InvalidConfig if they differ, from each other or
    from what is left of earlier epochs.
    """
    first = arithmetics[0]
    for rank, other in enumerate(arithmetics):
        for name in first:
            if other[name] != first[name]:
                raise InvalidConfig(
                    f"the workers' arithmetic differs: {name} is {first[name]} on worker 0, node {nodes[0]}, and "
                    f"{other[name]} on worker {rank}, node {nodes[rank]}"
                )
    if before is not None and not before.arithmetic.items() <= first.items():
        raise InvalidConfig(f"the replaced workers' arithmetic is {first}, and was {before.arithmetic} before")
    return first
