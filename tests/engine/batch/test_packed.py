"""What is the same at all of a request's positions is packed once, and known by what it holds."""

from typing import Any

import numpy as np
import pytest

from engine.batch.packed import pack_set
from engine.sampling_params import SamplingParams
from engine.scheduling.token_sets.requested import BadWords

VOCAB = 96


@pytest.mark.parametrize(
    ("allowed", "ids", "words"),
    [
        ((3, 1), [3, 1], []),
        ((3, 1, 3, 33), [], [0b1010, 0b10, 0]),  # more ids than a mask has words
        (None, [], []),
    ],
)
def test_allowed_tokens_are_ids_or_a_mask(allowed: tuple[int, ...] | None, ids: list[int], words: list[int]) -> None:
    packed = pack_set(SamplingParams(allowed_token_ids=allowed), VOCAB)
    assert (packed.ids.tolist(), packed.words.tolist(), bool(packed.digest)) == (ids, words, allowed is not None)


def test_biases_are_those_asked_for_and_words_of_one_token() -> None:
    packed = pack_set(SamplingParams(logit_bias={4: -2.0, 5: 1.5}), VOCAB, BadWords([[5], [6], [7, 8]]))
    assert packed.bias_ids.tolist() == [4, 5, 6]
    assert packed.bias_values.tolist() == [-2.0, -np.inf, -np.inf]


def test_a_set_is_known_by_what_it_holds() -> None:
    wishes: list[dict[str, Any]] = [{"allowed_token_ids": ids} for ids in ((1, 2), (1, 2), (2,), (1, 2, 3, 4))]
    wishes += [{"logit_bias": {1: 2.0}}, {"logit_bias": {1: 3.0}}, {"allowed_token_ids": (1,), "logit_bias": {1: 2.0}}]
    digests = [pack_set(SamplingParams(**each), VOCAB).digest for each in wishes]
    assert digests[0] == digests[1] and len(set(digests)) == 6
