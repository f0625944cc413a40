"""Where our packages are, and that they are ours."""

import importlib.util
from pathlib import Path

from engine.errors import InvalidConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "parallel", "ops", "cluster")


def check_packages() -> None:
    """Raises InvalidConfig unless `engine`, `parallel`, `ops` and `cluster` are all ours: other
    packages may have these common names.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent.parent != ROOT:
            found = "nowhere" if spec is None else spec.origin
            raise InvalidConfig(f"package {name!r} is found in {found}, not in {ROOT}: another package has its name")
