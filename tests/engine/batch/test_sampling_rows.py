"""What requests ask for becomes columns: by name, and only what some row uses."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from engine.batch.packed import PARAMS, pack_params, pack_set, uses_rare_columns
from engine.batch.sampling_rows import SampledRow, sampling_columns
from engine.outputs import RequestMetrics
from engine.request import Request
from engine.sampling_columns import ALWAYS
from engine.sampling_params import SamplingParams
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.token_sets.requested import BadWords

PROMPT, OUTPUT = [5, 6, 7], [8, 9]
STOPS = frozenset({1, 2})
VOCAB = 96


def row(
    target: int | None = None, bad_words: list[list[int]] | None = None, num_unknown: int = 0, **wishes: Any
) -> SampledRow:
    """The row of the token after PROMPT and OUTPUT, and after a token that is not known if there is
    one, or of a prompt's that is given; `bad_words` as token ids.
    """
    params = SamplingParams(**wishes)
    seq = Sequence(0, [*PROMPT, *OUTPUT], len(PROMPT))
    token_set = pack_set(params, VOCAB, BadWords(bad_words or []))
    group = SequenceGroup(
        request=Request("r", PROMPT, params),
        params=params,
        prompt=None,
        prompt_token_ids=PROMPT,
        seqs=[seq],
        order=(0, 0),
        seed=3,
        max_output_tokens=16,
        stop_token_ids=STOPS,
        metrics=RequestMetrics(0.0, phase_start=0.0),
        packed_params=pack_params(params, 3, 0),
        token_set=token_set,
        set_number=7 if token_set.digest else 0,
        bad_words=BadWords(bad_words or []),
        has_penalties=params.has_penalties,
        has_bias=bool(params.logit_bias or params.min_tokens or bad_words),
        wants_rare_columns=uses_rare_columns(params) or bool(bad_words),
    )
    return group, seq, 0, len(PROMPT) + len(OUTPUT) + num_unknown if target is None else len(PROMPT) - 1, target


def used(*rows: SampledRow) -> dict[str, list[Any]]:
    """The columns beyond those of every step that the rows have."""
    columns = sampling_columns(list(rows))
    names = [field.name for field in fields(columns) if field.name not in ALWAYS]
    return {name: getattr(columns, name).tolist() for name in names if len(getattr(columns, name))}


def test_parameters_are_packed_by_name() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=4, top_p=0.25, min_p=0.125, presence_penalty=1, repetition_penalty=2, logprobs=3
    )
    (record,) = np.frombuffer(pack_params(params, 2**64 - 1, 0), PARAMS)
    given = {"temperature": 0.5, "top_k": 4, "top_p": 0.25, "min_p": 0.125, "seed": 2**64 - 1, "logprob_counts": 4}
    penalties = {"presence_penalty": 1.0, "frequency_penalty": 0.0, "repetition_penalty": 2.0}
    assert {name: record[name].item() for name in given | penalties} == given | penalties


@pytest.mark.parametrize(
    ("params", "num_candidates", "expected"),
    [({}, 0, 0), ({"logprobs": 0}, 0, 1), ({"logprobs": 5}, 0, 6), ({"best_of": 2}, 0, 1), ({"beam_width": 2}, 4, 5)],
)
def test_how_many_logprobs_a_row_wants(params: dict[str, Any], num_candidates: int, expected: int) -> None:
    (record,) = np.frombuffer(pack_params(SamplingParams(**params), 0, num_candidates), PARAMS)
    assert record["logprob_counts"] == expected


def test_rows_of_plain_requests_have_the_columns_of_every_step_alone() -> None:
    drawn = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "logprobs": 2, "stop": "x", "ignore_eos": True}
    assert used(row(), row(**drawn)) == {}
    columns = sampling_columns([row(), row(**drawn)])
    assert columns.top_k.tolist() == [0, 5]
    assert columns.position.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"logit_bias": {4: -2.0}}, {"token_sets": [0, 7]}),
        ({"min_tokens": 3}, {"bias_starts": [0, 0, 2], "bias_ids": [1, 2], "bias_values": [-np.inf, -np.inf]}),
        ({"min_tokens": 2}, {}),  # it has as many
        ({"bad_words": [[8, 9, 4]]}, {"bias_starts": [0, 0, 1], "bias_ids": [4], "bias_values": [-np.inf]}),
        ({"bad_words": [[9, 8, 4]]}, {}),  # not what it has said
        (
            {"bad_words": [[3], [6, 4], [7, 8, 9, 1, 4], [9, 5, 2], [8, 9, 4], [8, 5, 2]], "num_unknown": 1},
            {
                "token_sets": [0, 7],  # the word of one token
                **{"ban_starts": [0, 0, 2], "ban_last_ids": [6, 5], "ban_ids": [4, 2]},
            },
        ),
        ({"allowed_token_ids": (3, 1)}, {"token_sets": [0, 7]}),
        ({"prompt_logprobs": 1}, {}),  # the row is not of the prompt
    ],
    ids=str,
)
def test_what_one_row_uses_every_row_has(wishes: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    assert used(row(), row(**wishes)) == expected


def test_a_penalty_brings_the_length_of_the_prompt_and_no_other_penalty() -> None:
    assert used(row(), row(frequency_penalty=0.5)) == {"history_num_prompt": [0, 3], "frequency_penalty": [0.0, 0.5]}


def test_a_given_token_takes_nothing_but_its_logprobs() -> None:
    wishes = {"prompt_logprobs": 2, "allowed_token_ids": (3,), "logit_bias": {4: 1.0}, "min_tokens": 4}
    rows = [row(target=6, **wishes), row()]
    assert used(*rows) == {"has_target": [True, False], "target_ids": [6, 0]}
    assert sampling_columns(rows).logprob_counts.tolist() == [3, 0]


def test_a_token_that_ends_reasoning_has_the_logprobs_of_a_sampled_one() -> None:
    group, seq, choice, position, _ = row(logprobs=1, prompt_logprobs=2, frequency_penalty=0.5, bad_words=[[8, 9, 4]])
    rows = [(group, seq, choice, position, 4), row()]
    assert used(*rows) == {"has_target": [True, False], "target_ids": [4, 0], "frequency_penalty": [0.5, 0.0]}
    assert sampling_columns(rows).logprob_counts.tolist() == [2, 0]


def test_a_step_may_sample_nothing() -> None:
    columns = sampling_columns([])
    assert not any(len(getattr(columns, field.name)) for field in fields(columns))
