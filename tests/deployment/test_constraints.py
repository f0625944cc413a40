"""What is installed with Squadron, however deep, is what constraints.txt says."""

import importlib.metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cluster.launch.packages import ROOT

OURS = "squadron-serve"
# Triton comes with torch; setuptools and pip with Python.
NOT_PINNED = {OURS, "triton", "setuptools", "pip", "wheel"}


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Of an installed package, with these extras."""
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        markers = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in markers):
            yield requirement


def installed() -> dict[str, Version]:
    """What Squadron asks for with all extras, what that asks for, and so on, if it is here."""
    found: dict[str, Version] = {}
    extras = frozenset(importlib.metadata.metadata(OURS).get_all("Provides-Extra") or [])
    waiting, seen = [(OURS, extras)], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, wanted = waiting.pop()
        try:
            found[canonicalize_name(name)] = Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
        if (name, wanted) not in seen:
            seen.add((name, wanted))
            waiting += [(each.name, frozenset(each.extras)) for each in required(name, wanted)]
    return found


def test_all_that_is_installed_is_pinned_at_its_version() -> None:
    here, pinned = installed(), pins()
    assert {"ray", "torch", "py-spy"} <= here.keys()
    names = {name for name in here if name not in NOT_PINNED and not name.startswith(("nvidia-", "cuda-"))}
    assert sorted(names - pinned.keys()) == []
    assert {name: here[name].public for name in names} == {name: str(pinned[name]) for name in names}
