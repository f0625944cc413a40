"""Where kernels are chained. What their machine code does is seen in `test_compiled`."""

import pytest
import torch

pytest.importorskip("triton")
from ops.kernels.chain import chained


@pytest.mark.parametrize(("major", "has_chains"), [(8, False), (9, True), (10, True), (12, True)])
def test_kernels_are_chained_on_hopper_and_later(monkeypatch: pytest.MonkeyPatch, major: int, has_chains: bool) -> None:
    """Devices that no other test asks about: what is known of one is kept."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index - 80, 0))
    options = chained(torch.device("cuda", 80 + major))
    assert options == ({"CHAINED": True, "launch_pdl": True} if has_chains else {"CHAINED": False})


def test_interpreted_kernels_are_not_chained() -> None:
    assert chained(torch.device("cpu")) == {"CHAINED": False}
