"""Requests become groups: their place in the queue, and where resumed ones go on."""

from dataclasses import replace

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, Request, finish, make_engine, run, truth


def test_priority_goes_first_and_nobody_waits_for_ever():
    engine = make_engine(
        Knobs(overrides={"max_num_seqs": 1, "max_num_batched_tokens": 64, "scheduling_policy": "priority"})
    )
    order = []
    for number in range(1500):
        add_request(
            engine, f"r{number}", [1 + number % 30], SamplingParams(max_tokens=1), priority=1 if number == 0 else 0
        )
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step()]
    assert order[0] == "r1", "priority 0 overtakes priority 1"
    assert order.index("r0") == 999, "but by less than a thousand"


def test_resumed_output_tokens_count_as_outputs():
    request = Request(
        "r",
        [7] * 9,
        SamplingParams(seed=5, max_tokens=30, frequency_penalty=0.5, stop=["zz"], ignore_eos=True),
        0,
        None,
    )
    whole = run(make_engine(Knobs()), [request])["r"].outputs[0]
    for cut in range(1, len(whole.token_ids)):
        engine = make_engine(Knobs())
        add_request(engine, "r", request.prompt, request.params, output_ids=[whole.token_ids[:cut]], attempt=1)
        rest = finish(engine)["r"]
        assert rest.attempt == 1 and rest.outputs[0].first_index == cut
        assert whole.token_ids[:cut] + rest.outputs[0].token_ids == whole.token_ids
        assert whole.text.endswith(rest.outputs[0].text) and rest.outputs[0].finish_reason == whole.finish_reason


def test_a_resumed_request_keeps_its_length_where_another_is_served():
    request = Request("r", [7] * 50, SamplingParams(seed=5, max_tokens=None, ignore_eos=True), 0, None)
    first = make_engine(Knobs(overrides={"max_model_len": 100}))
    add_request(first, "r", request.prompt, request.params)
    (delta,) = first.step()
    assert delta.max_tokens == 50
    first.abort_request("r")
    whole = run(first, [request])["r"].outputs[0].token_ids
    params = replace(request.params, max_tokens=delta.max_tokens)
    longer = make_engine(Knobs(overrides={"max_model_len": 200}))
    add_request(longer, "r", request.prompt, params, output_ids=[whole[:30]], attempt=1)
    assert whole[:30] + finish(longer)["r"].outputs[0].token_ids == whole
    shorter = make_engine(Knobs(overrides={"max_model_len": 90}))
    add_request(shorter, "r", request.prompt, params, output_ids=[whole[:30]], attempt=1)
    cut = finish(shorter)["r"]
    assert whole[:30] + cut.outputs[0].token_ids == whole[:40], "it is told all that it got"
    assert cut.outputs[0].finish_reason == "error" and "90 tokens fill the context here" in cut.error
    with pytest.raises(
        InvalidRequest,
        match=r"length is 90 tokens\. However, you requested 50 in the prompt and at least 41 to generate",
    ):
        add_request(shorter, "r", request.prompt, params, output_ids=[whole[:41]], attempt=1)


@pytest.mark.parametrize("num_others", [0, 1])
def test_a_resumed_request_that_fills_a_shorter_context_has_not_ended(num_others: int) -> None:
    params = SamplingParams(seed=5, n=1 + num_others, max_tokens=50, ignore_eos=True)
    engine = make_engine(Knobs(overrides={"max_model_len": 90}))
    output_ids = [[3] * 40, *[[3] * 39] * num_others]
    with pytest.raises(InvalidRequest, match="you requested 50 in the prompt and at least 41 to generate"):
        add_request(engine, "r", [7] * 50, params, output_ids=output_ids, attempt=1)
    assert not engine.has_unfinished_requests()


def test_resumed_with_all_of_its_tokens_it_only_ends():
    request = Request("r", [7] * 9, SamplingParams(seed=5, n=2, max_tokens=6, ignore_eos=True), 0, None)
    whole = run(make_engine(Knobs()), [request])["r"].outputs
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, request.params, output_ids=[choice.token_ids for choice in whole])
    (last,) = engine.step()
    assert last.finished and not engine.has_unfinished_requests()
    assert [(c.token_ids, c.first_index, c.finish_reason) for c in last.outputs] == [([], 6, "length")] * 2


def test_resumed_choices_go_on_each_by_itself():
    request = Request("r", [7] * 9, SamplingParams(seed=5, n=3, max_tokens=12, ignore_eos=True), 0, None)
    whole = run(make_engine(Knobs()), [request])["r"].outputs
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, request.params, output_ids=[choice.token_ids[:4] for choice in whole])
    rest = finish(engine)["r"].outputs
    assert [choice.token_ids[4:] for choice in whole] == [choice.token_ids for choice in rest]
    assert [truth(request, index, seed=5) for index in range(3)] == [choice.token_ids for choice in whole]


def test_prompt_logprobs_of_resumed_choices_come_once():
    params = SamplingParams(n=2, seed=3, max_tokens=6, prompt_logprobs=1, ignore_eos=True)
    request = Request("r", [7, 8, 9, 10, 11, 12], params, 0, None)
    whole = run(make_engine(Knobs()), [request])["r"]
    assert len(whole.prompt_logprobs) == len(request.prompt)
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, params, output_ids=[choice.token_ids[:2] for choice in whole.outputs])
    rest = finish(engine)["r"]
    assert rest.prompt_logprobs is None, "the first attempt has sent them"
    assert [choice.token_ids[2:] for choice in whole.outputs] == [choice.token_ids for choice in rest.outputs]
