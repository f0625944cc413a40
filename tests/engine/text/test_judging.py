"""How well a document fits a query."""

import math

import numpy as np
import pytest

from engine.pooling import Pooling
from engine.text.judging import judging, score
from engine.text.tokenizer import Tokenizer
from tests.engine.support.judge import save_judge
from tests.engine.support.workloads import TOKENIZER


def test_the_answers_are_single_tokens_or_there_are_none(tmp_path) -> None:
    assert judging(TOKENIZER) is None
    save_judge(tmp_path)
    tokenizer = Tokenizer(str(tmp_path))
    pooling = judging(tokenizer)
    assert pooling is not None and pooling.type == "logprobs"
    assert [tokenizer.decode([token_id]) for token_id in pooling.token_ids] == ["yes", "no"]
    assert pooling == Pooling("logprobs", pooling.token_ids)


@pytest.mark.parametrize(
    ("yes", "no", "expected"),
    [(-1, -1, 0.5), (-1, -3, 1 / (1 + math.exp(-2))), (-3, -1, 1 / (1 + math.exp(2))), (-900, 0, 0), (0, -900, 1)],
)
def test_a_score_is_the_share_of_yes(yes: float, no: float, expected: float) -> None:
    assert score(np.array([yes, no], "<f4").tobytes()) == pytest.approx(expected)
