"""The control groups (cgroups) that this process is in: a container's, a service's."""

from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def control_groups(controller: str, cgroup: Path = CGROUP, own: Path = OWN) -> Iterator[Path]:
    """Folders that may have files of the controller: of the process' own group and those around it,
    in version 2 and in version 1, where each controller has groups of its own. `own`: names them.
    """
    lines = own.read_text(errors="replace").splitlines() if own.exists() else []
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    for name, root in (("", cgroup), (controller, cgroup / controller)):
        group = root / paths.get(name, "").strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))
