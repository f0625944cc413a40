"""What this machine has."""

import pytest

from cluster.launch.machine import num_gpus


def test_hidden_gpus_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert num_gpus() == 0
