"""What `prefix_timing` concludes from the times it has."""

import random

import pytest

from tests.end_to_end.prefix_timing import auc, most_distance

NUM_RUNS = 200


@pytest.mark.parametrize("num_prompts", [20, 400])
def test_chance_is_no_leak(num_prompts: int) -> None:
    """Of 200 runs one may be beyond three standard deviations, or two."""
    rng, half = random.Random(0), num_prompts // 2

    def times() -> list[float]:
        return [rng.random() for _ in range(half)]

    distances = [abs(auc(times(), times()) - 0.5) for _ in range(NUM_RUNS)]
    assert sum(distance > most_distance(num_prompts) for distance in distances) <= 2
    assert max(distances) > 0.05, "though they are further than what would be allowed of many"


@pytest.mark.parametrize("num_prompts", [20, 400])
def test_a_leak_is_one_on_either_side(num_prompts: int) -> None:
    half = num_prompts // 2
    hits, misses = [0.1 + 0.001 * number for number in range(half)], [0.6] * half
    for faster, slower in ((hits, misses), (misses, hits)):
        assert abs(auc(faster, slower) - 0.5) > most_distance(num_prompts)


def test_many_prompts_are_held_to_what_is_allowed() -> None:
    assert most_distance(400) == pytest.approx(0.0867, abs=1e-4)
    assert most_distance(1300) == 0.05
