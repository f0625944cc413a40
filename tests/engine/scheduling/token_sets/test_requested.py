"""What bad words rule out, against the plain meaning: no word ends at the next token."""

import random

from engine.scheduling.token_sets.requested import BadWords

NUM_IDS = 4  # so few that words and outputs meet


def some_ids(rng: random.Random, at_most: int) -> list[int]:
    return [rng.randrange(NUM_IDS) for _ in range(rng.randint(0, at_most))]


def banned_after(words: list[list[int]], output_ids: list[int]) -> set[int]:
    return {each for each in range(NUM_IDS) if any([*output_ids, each][-len(word) :] == word for word in words)}


def test_any_words_after_any_output() -> None:
    rng = random.Random(3)
    num_banned = 0
    for _ in range(2000):
        words = [word for word in (some_ids(rng, 5) for _ in range(4)) if word]
        output_ids = some_ids(rng, 7)
        bad = BadWords(words)
        assert bool(bad) == bool(words)
        assert set(bad.always()) | set(bad.after(output_ids)) == banned_after(words, output_ids)
        for unknown in range(NUM_IDS):
            then = {int(banned) for after, banned in bad.pairs_after(output_ids) if after == unknown}
            assert set(bad.always()) | then == banned_after(words, [*output_ids, unknown])
            num_banned += len(then)
    assert num_banned > 500
