"""Chains of the places that follow the same tokens."""

import random

import pytest

from engine.scheduling.drafts.places import Places


def after_same(token_ids: list[int], width: int) -> list[int]:
    """By looking everywhere."""
    newest = token_ids[len(token_ids) - width :] if len(token_ids) >= width else None
    return [place for place in range(width, len(token_ids)) if token_ids[place - width : place] == newest]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_a_chain_has_every_place_that_follows_the_same_tokens(width: int) -> None:
    rng, num_found, others = random.Random(width), 0, []
    for num_ids in (2, 5, 40, 100_000):
        token_ids: list[int] = []
        places = Places(width)
        while len(token_ids) < 600:
            token_ids += [rng.randrange(num_ids) for _ in range(rng.choice((1, 1, 1, 2, 50)))]
            places.take(token_ids)
            found, right = places.few(1000), after_same(token_ids, width)
            assert found is not None and found == sorted(found) and set(right) <= set(found)
            num_found += len(right)
            others.append(len(found) - len(right))
            assert places.few(len(found)) == found
            assert not found or places.few(len(found) - 1) is None
    assert num_found > 20 and sum(others) < len(others)


def test_tokens_make_the_same_chains_one_by_one_and_at_once() -> None:
    token_ids, growing = [random.Random(0).randrange(9) for _ in range(2000)], Places(3)
    for count in range(1, len(token_ids)):
        growing.take(token_ids[:count])
        if count % 50 == 0:
            whole = Places(3)
            whole.take(token_ids[:count])
            right = after_same(token_ids[:count], 3)
            for places in (growing, whole):
                assert [place for place in places.few(9000) or [] if place in right] == right


def test_a_token_takes_few_bytes() -> None:
    places = Places(2)
    for count in range(1000, 200_000, 1000):
        places.take(list(range(count)))
        size = places._before.buffer_info()[1] + places._newest.buffer_info()[1]
        assert 4 * size <= 28 * count
