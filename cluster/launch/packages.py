"""Finds our packages, and checks that all come from one folder."""

import importlib.util
from pathlib import Path

from engine.errors import InvalidConfig, without_secret

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "parallel", "ops", "cluster")
_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "file")  # what pyarrow has a filesystem for


def check_packages() -> None:
    """Raises InvalidConfig unless `engine`, `parallel`, `ops` and `cluster` are all ours: other
    packages may have the same common names.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent.parent != ROOT:
            found = "nowhere" if spec is None else spec.origin
            raise InvalidConfig(f"package {name!r} is found in {found}, not in {ROOT}: another package has its name")


def check_batch_packages(wish: str) -> None:
    """Raises InvalidConfig if the packages for batches are not installed."""
    for package in ("pandas", "pyarrow", "python_multipart"):
        if importlib.util.find_spec(package) is None:
            raise InvalidConfig(f"{wish} needs the package {package}: pip install 'squadron-serve[batch]'")


def check_files_path(place: str) -> None:
    """Raises InvalidConfig unless the path is absolute or a URI of a store that there is, and all
    packages are installed.
    """
    scheme, is_uri, _ = place.partition("://")
    if not place.startswith("/") and not is_uri:
        raise InvalidConfig(f"files_path={place!r} must begin with /, or be a URI such as s3://bucket/folder")
    if is_uri and scheme not in _STORES:
        there_are = ", ".join(f"{store}://" for store in _STORES)
        raise InvalidConfig(f"files_path={without_secret(place)!r} is in no store that there is; there are {there_are}")
    check_batch_packages("files_path")
