"""That what `make bench` names can be run, in its quick form."""

import importlib
import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import MODULES, ROOT


@pytest.mark.parametrize("module", sorted({module for module, *_ in MODULES.values()}))
def test_a_benchmark_can_be_imported(module: str) -> None:
    assert callable(importlib.import_module(f"tests.benchmarks.{module}").main)


@pytest.mark.long
@pytest.mark.parametrize("item", MODULES)
def test_a_benchmark_runs(item: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.benchmarks", "--quick", item], cwd=ROOT, check=True, timeout=900)
