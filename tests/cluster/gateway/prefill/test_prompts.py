"""Which prompts are computed by engines of their own: see also `test_prefill`."""

from cluster.gateway.engines.prefixes import MAX_BYTES
from cluster.gateway.prefill.prompts import Prompts, prefilled, to_compute
from engine.request import BYTES_PER_TOKEN, Request, Resume
from engine.sampling_params import SamplingParams

LONG = list(range(1000))
REQUEST = Request("r", LONG, SamplingParams(max_tokens=9, n=2, temperature=0.9), cache_salt="a", timeout=3.0)


def test_a_prompt_is_worth_it_once_for_each_salt() -> None:
    prompts = Prompts(500)
    assert [prompts.are_worth_it(REQUEST) for _ in range(2)] == [True, True], "until it has been computed"
    prompts.remember(REQUEST)
    assert not prompts.are_worth_it(REQUEST)
    assert prompts.are_worth_it(Request("r", LONG, REQUEST.params, cache_salt="b"))
    assert not prompts.are_worth_it(Request("r", LONG[:400], REQUEST.params, cache_salt="c"))
    assert not prompts.are_worth_it(Request("r", [*LONG, *range(400)], REQUEST.params, cache_salt="a"))
    assert prompts.are_worth_it(Request("r", [*LONG, *range(400), *range(600)], REQUEST.params, cache_salt="a"))


def test_what_lies_behind_all_that_is_looked_at_is_new() -> None:
    prompts = Prompts(500)
    longest = Request("r", [7] * (MAX_BYTES // BYTES_PER_TOKEN), REQUEST.params)
    prompts.remember(longest)
    assert not prompts.are_worth_it(longest)
    assert prompts.are_worth_it(Request("r", [*longest.prompt, *LONG], REQUEST.params))


def test_a_prompt_is_put_to_them_with_nothing_of_its_answer() -> None:
    request = Request("r", LONG, REQUEST.params, cache_salt="a", timeout=3.0, resume=Resume(attempt=1))
    asked = to_compute(request)
    assert (asked.prompt, asked.cache_salt, asked.timeout, asked.resume) == (LONG, "a", None, Resume())
    assert (asked.params.max_tokens, asked.params.n) == (1, 1)
    told = prefilled(request, "10.0.0.2:7000")
    assert told.is_prefilled and told.blocks_at == "10.0.0.2:7000" and not asked.is_prefilled
    assert told.params == request.params
