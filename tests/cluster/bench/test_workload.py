"""What a benchmark asks, and that a seed fixes it."""

import math

import numpy as np
import pytest

from cluster.bench.workload import Lengths, generator, lengths, poisson_arrivals, random_works


class TestWorkload:
    def test_lengths(self) -> None:
        assert lengths("128") == Lengths(128, 128)
        assert lengths("16:256") == Lengths(16, 256)
        assert [str(lengths(text)) for text in ("7", "7:9")] == ["7", "7:9"]

    def test_all_lengths_come_and_no_others(self) -> None:
        works = random_works(np.random.default_rng(0), 300, Lengths(3, 6), Lengths(1, 4), 10)
        assert {len(work.prompt) for work in works} == {3, 4, 5, 6}
        assert {work.output_len for work in works} == {1, 2, 3, 4}
        assert {token_id for work in works for token_id in work.prompt} == set(range(10))

    def test_the_seed_decides(self) -> None:
        first, again, other = (random_works(generator(seed), 9, Lengths(1, 9), Lengths(1, 9), 50) for seed in (1, 1, 2))
        assert first == again != other
        assert first == random_works(np.random.default_rng(1), 9, Lengths(1, 9), Lengths(1, 9), 50)

    def test_a_seed_may_be_below_0(self) -> None:
        """As an engine's may."""
        first, again, other = (
            random_works(generator(seed), 9, Lengths(1, 9), Lengths(1, 9), 50) for seed in (-1, -1, 1)
        )
        assert first == again != other

    def test_arrivals_are_poisson(self) -> None:
        arrivals = poisson_arrivals(np.random.default_rng(0), 20_001, 50.0)
        gaps = np.diff(arrivals)
        assert arrivals[0] == 0
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
        assert gaps.std() == pytest.approx(1 / 50, rel=0.03)
        assert np.mean(gaps > 1 / 50) == pytest.approx(1 / math.e, abs=0.02)

    def test_all_at_once(self) -> None:
        assert poisson_arrivals(np.random.default_rng(0), 3, math.inf) == [0.0, 0.0, 0.0]
