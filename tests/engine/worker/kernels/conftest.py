"""Whole steps on the Triton backend: interpreted by `tests.engine.worker.test_interpreted`, else on
a GPU.
"""

import importlib

import pytest

from tests.ops.kernels.where import IS_INTERPRETED

pytest.importorskip("triton")
if IS_INTERPRETED:
    importlib.import_module("tests.ops.kernels.interpreter")
