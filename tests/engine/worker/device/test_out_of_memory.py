"""What is said when memory runs out."""

import pytest
import torch

from engine.errors import InvalidConfig
from engine.worker.device.out_of_memory import out_of_memory_advice


def test_it_becomes_a_sentence_that_says_what_to_change() -> None:
    with pytest.raises(InvalidConfig) as refused, out_of_memory_advice("the cache was made", "lower it"):
        raise torch.OutOfMemoryError("tried 2 GiB\nand a table")
    assert str(refused.value) == "out of GPU memory while the cache was made: lower it (tried 2 GiB)"


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ValueError, match="another"), out_of_memory_advice("", ""):
        raise ValueError("another")
