"""What is said when memory runs out, and which errors end a worker."""

from pathlib import Path

import pytest
import torch

from engine.errors import InvalidConfig
from engine.worker.device.errors import TRITON, has_failed, out_of_memory_advice


def test_it_becomes_a_sentence_that_says_what_to_change() -> None:
    with pytest.raises(InvalidConfig) as refused, out_of_memory_advice("the cache was made", "lower it"):
        raise torch.OutOfMemoryError("tried 2 GiB\nand a table")
    assert str(refused.value) == "out of GPU memory while the cache was made: lower it (tried 2 GiB)"


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ValueError, match="another"), out_of_memory_advice("", ""):
        raise ValueError("another")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("the sizes do not fit"), False),
        (ValueError("Triton Error [CUDA]: is no error of the launcher's"), False),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_device_that_has_failed_is_told_from_a_step_that_has(error: Exception, expected: bool) -> None:
    assert has_failed(error) is expected


def test_tritons_launcher_words_it_so() -> None:
    triton = pytest.importorskip("triton")
    driver = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    assert f'"{TRITON}"' in driver.read_text(encoding="utf-8")
