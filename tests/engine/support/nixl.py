"""Where tests find NIXL, which few have: installed, or where `.ci/nixl` puts it."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "nixl"
if FOLDER.exists() and str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))  # behind all others: its packages alone are meant

HAS_NIXL = importlib.util.find_spec("nixl") is not None
needs_nixl = pytest.mark.skipif(not HAS_NIXL, reason="no NIXL here: .ci/nixl FOLDER installs it")
