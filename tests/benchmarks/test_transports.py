"""A benchmark of transports counts bytes that have come, and waits for none that do not come."""

import argparse
from pathlib import Path

import pytest

from tests.benchmarks.bench_transports import measured


def test_a_block_that_does_not_come_is_no_bytes(tmp_path: Path) -> None:
    asked = argparse.Namespace(bytes=1024, threads=1, seconds=0.1)
    with pytest.raises(ValueError, match=r"no block of 1,.* bytes came from"):
        measured(tmp_path, asked, uses_nixl=False)
