"""What a step's rows become: logprobs by token, and the best of several choices."""

import numpy as np

from engine.output.decoding import SampledRows
from engine.outputs import SamplerOutput
from engine.sampling_params import SamplingParams
from tests.engine.support.workloads import TOKENIZER, Knobs, Request, make_engine, run

A, B, C = 32, 33, 34  # tokens of a letter each


def rows(token_id: int) -> SampledRows:
    """One that drew the token, of which B and C are the most likely ones."""
    output = SamplerOutput(
        epoch=0,
        step=0,
        token_ids=np.array([token_id], np.int32),
        is_finite=np.ones(1, np.bool_),
        logprobs=np.array([-2.0], np.float32),
        ranks=np.array([2 if token_id == C else 7], np.int32),
        top_ids=np.array([[B, C]], np.int32),
        top_logprobs=np.array([[-0.5, -2.0]], np.float32),
        execute_ns=np.zeros(1, np.int64),
    )
    return SampledRows(output, TOKENIZER)


def test_the_rows_own_token_comes_beside_the_most_likely_ones() -> None:
    logprobs = rows(A).position_logprobs(0, count=2)
    assert {token_id: (each.logprob, each.rank) for token_id, each in logprobs.items()} == {
        A: (-2.0, 7),
        B: (-0.5, 1),
        C: (-2.0, 2),
    }
    assert [each.decoded_token for each in logprobs.values()] == ["A", "B", "C"]


def test_it_is_not_repeated_where_it_is_one_of_them() -> None:
    assert list(rows(C).position_logprobs(0, count=2)) == [C, B]
    assert list(rows(C).position_logprobs(0, count=0)) == [C]


def test_the_best_of_some_choices_have_the_highest_mean_logprobs() -> None:
    fields = {"seed": 5, "max_tokens": 30, "logprobs": 0}
    every = run(make_engine(Knobs()), [Request("r", [3] * 9, SamplingParams(n=5, **fields), 0, None)])["r"].outputs
    best = Request("r", [3] * 9, SamplingParams(n=2, best_of=5, **fields), 0, None)
    kept = run(make_engine(Knobs()), [best])["r"].outputs
    ranked = sorted(every, key=lambda choice: -(choice.cumulative_logprob or 0.0) / len(choice.token_ids))
    assert [choice.token_ids for choice in kept] == [choice.token_ids for choice in ranked[:2]]
    assert [choice.index for choice in kept] == [0, 1]
    assert [choice.text for choice in kept] == [choice.text for choice in ranked[:2]]
