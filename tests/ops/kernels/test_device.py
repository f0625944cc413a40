import pytest
import torch

pytest.importorskip("triton")
from ops.kernels import device as module


def test_float8_is_refused_where_it_cannot_be_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that no other test asks about: what is known of one is kept."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, device.index - 100))
    module.check_float8(torch.device("cuda", 109))
    with pytest.raises(ValueError, match=r"compute capability 8\.9 or later"):
        module.check_float8(torch.device("cuda", 108))
    module.check_float8(torch.device("cpu"))  # interpreted


def test_an_interpreted_grid_has_more_than_one_program() -> None:
    assert module.num_processors(torch.device("cpu")) == module.NUM_INTERPRETED_PROGRAMS > 1
