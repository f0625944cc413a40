"""Numbers instead of tokens."""

import math

import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.pooling import UNIT, Embedding, check_dimensions, mean, values


def units(*numbers: float) -> np.ndarray:
    return np.round(np.array(numbers) / UNIT).astype(np.int64)


def test_a_mean_is_the_sum_over_the_positions() -> None:
    assert values(mean(units(1, -3, 0.5), 1)).tolist() == [1, -3, 0.5]
    assert values(mean(units(1, -3, 0.5), 4)).tolist() == [0.25, -0.75, 0.125]


def test_a_normalized_embedding_has_length_one() -> None:
    vector = Embedding("last").vector(mean(units(3, 4), 1))
    assert vector.dtype == np.float32 and vector.tolist() == [np.float32(0.6), np.float32(0.8)]
    assert Embedding("last", is_normalized=False).vector(mean(units(3, 4), 1)).tolist() == [3, 4]


def test_fewer_dimensions_are_cut_before_they_are_normalized() -> None:
    vector = Embedding().vector(mean(units(3, 4, 12), 1), 2)
    assert vector.tolist() == [np.float32(0.6), np.float32(0.8)]
    assert math.isclose(float(np.linalg.norm(vector)), 1, abs_tol=1e-6)


def test_zeros_stay_zeros() -> None:
    assert Embedding().vector(mean(units(0, 0), 1)).tolist() == [0, 0]


def test_more_dimensions_than_there_are() -> None:
    check_dimensions(None, 3)
    check_dimensions(3, 3)
    with pytest.raises(InvalidRequest, match="dimensions=4 exceeds the 3") as caught:
        check_dimensions(4, 3)
    assert caught.value.param == "dimensions"
