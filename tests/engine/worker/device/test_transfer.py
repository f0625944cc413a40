"""What goes to the device in one copy comes apart as it was, wherever it is put together."""

import numpy as np
import torch

from engine.worker.device.transfer import ALIGNMENT, Download, join, pack, split, unpack, upload
from tests.engine.worker.steps import floats, ints, pairs

ARRAYS = {
    "ids": ints(3, -1, 7),
    "none": ints(),
    "flag": np.array([True, False, True, True, False]),
    "wide": np.array([1 << 62, -5], np.int64),
    "no_pairs": pairs(),
    "columns": pairs((1, 2), (3, 4), (5, 6)).T,  # not contiguous
    "shares": floats(0.25, float("nan")),
}


def test_arrays_packed_into_one_are_what_they_were() -> None:
    tensors = unpack(pack(ARRAYS, pinned=False), ARRAYS)
    assert list(tensors) == list(ARRAYS)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), ARRAYS[name])
        assert tensor.numpy().dtype == ARRAYS[name].dtype
        assert tensor.is_contiguous()
        assert tensor.storage_offset() * tensor.element_size() % ALIGNMENT == 0


def test_on_the_cpu_nothing_is_copied_that_need_not_be() -> None:
    tensors = upload(ARRAYS, torch.device("cpu"))
    assert np.shares_memory(tensors["ids"].numpy(), ARRAYS["ids"])
    assert tensors["columns"].is_contiguous()
    assert tensors["columns"].tolist() == [[1, 3, 5], [2, 4, 6]]


def test_tensors_come_back_in_one_copy() -> None:
    tensors = [torch.empty_like(tensor).copy_(tensor) for tensor in map(torch.from_numpy, ARRAYS.values())]
    for arrays in (split(join(tensors), tensors), Download(tensors).arrays()):
        for array, expected in zip(arrays, ARRAYS.values(), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
