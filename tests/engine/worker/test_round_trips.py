"""The check for round trips as it is switched on where there is a device: torch warns of it."""

import warnings

import pytest
import torch

from tests.engine.worker.round_trips import refusing_round_trips


def test_the_warning_of_torch_is_no_error_and_the_mode_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = ["default"]

    def set_mode(mode: str) -> None:
        """As torch's: the mode is set first."""
        modes.append(mode)
        if modes.count("error") == 1 and mode == "error":
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    for _ in range(2):
        with refusing_round_trips(torch.device("cuda")):
            assert modes[-1] == "error"
        assert modes[-1] == "default"
    with pytest.raises(KeyError), refusing_round_trips(torch.device("cuda")):
        raise KeyError
    assert modes[-1] == "default"
