"""Which prompts are computed by engines of their own: see also `test_prefill`."""

from dataclasses import replace

import pytest

from cluster.gateway.prefill.prompts import are_worth_it, prefilled, to_compute
from engine.kv_events.beginnings import PIECE_BYTES
from engine.request import BYTES_PER_TOKEN, Request, Resume
from engine.sampling_params import SamplingParams

LONG = list(range(1000))
REQUEST = Request("r", LONG, SamplingParams(max_tokens=9, n=2, temperature=0.9), cache_salt="a", timeout=3.0)
PIECE = PIECE_BYTES // BYTES_PER_TOKEN  # tokens


@pytest.mark.parametrize(
    ("num_tokens", "num_known", "is_worth_it"),
    [(500, 0, True), (499, 0, False), (1000, 500 // PIECE, True), (1000, 500 // PIECE + 1, False)],
)
def test_a_prompt_is_worth_it_whose_new_part_is_long(num_tokens: int, num_known: int, *, is_worth_it: bool) -> None:
    request = replace(REQUEST, prompt=LONG[:num_tokens])
    assert are_worth_it(request, 500, lambda _: num_known) == is_worth_it


def test_what_others_may_not_have_computed_is_not() -> None:
    for changes in ({"resume": Resume(output_ids=[[1], [2]])}, {"params": replace(REQUEST.params, prompt_logprobs=1)}):
        assert not are_worth_it(replace(REQUEST, **changes), 500, lambda _: 0)


def test_a_prompt_is_put_to_them_with_nothing_of_its_answer() -> None:
    request = Request("r", LONG, REQUEST.params, cache_salt="a", timeout=3.0, resume=Resume(attempt=1))
    asked = to_compute(request)
    assert (asked.prompt, asked.cache_salt, asked.timeout, asked.resume) == (LONG, "a", None, Resume())
    assert (asked.params.max_tokens, asked.params.n) == (1, 1)
    told = prefilled(request, "10.0.0.2:7000")
    assert told.is_prefilled and told.blocks_at == "10.0.0.2:7000" and not asked.is_prefilled
    assert told.params == request.params
