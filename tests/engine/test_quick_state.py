"""Quick copies and pickles are those that Python makes."""

import pickle
from copy import copy
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest

from engine.request import ChatPrompt, Request, Resume, Share
from engine.sampling_params import SamplingParams, quick_state


@quick_state
@dataclass(frozen=True, slots=True)
class Pair:
    one: int
    two: list[int]


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, [2]),
        Share("team", 2.0),
        Resume(1, [[5]], [-0.5], "fp_0"),
        ChatPrompt([{"role": "user", "content": "Hi"}]),
        SamplingParams(seed=3, logit_bias={4: 1.0}, stop=["x"]),
        Request("r", [1, 2], SamplingParams(), cache_salt="tenant"),
    ],
)
def test_a_copy_and_a_pickle_are_equal_and_hold_the_fields_in_order(value: Any) -> None:
    assert copy(value) == value and pickle.loads(pickle.dumps(value)) == value
    # As Python's own function has it, which another process may use.
    assert value.__reduce_ex__(4)[2] == [getattr(value, field.name) for field in fields(value)]


def test_a_copy_shares_its_values_and_stays_frozen() -> None:
    pair = Pair(1, [2])
    made = copy(pair)
    assert made is not pair and made.two is pair.two
    with pytest.raises(FrozenInstanceError):
        made.one = 2  # type: ignore[misc]
