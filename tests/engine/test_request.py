"""A request crosses processes whole."""

import pickle

from engine.request import NEW, Arrival, ChatPrompt, Request, Resume
from engine.sampling_params import SamplingParams


def test_a_request_crosses_processes_as_it_is() -> None:
    resume = Resume(attempt=2, output_ids=[[5, 6]], cumulative_logprobs=[-1.5], fingerprint="fp_0", is_suspect=True)
    params = SamplingParams(seed=3, logit_bias={4: 1.0}, stop=["x"])
    prompt = ChatPrompt([{"role": "user", "content": "Hi"}])
    request = Request("r", prompt, params, priority=-1, cache_salt="tenant", resume=resume)
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_new_request_has_gained_nothing() -> None:
    request = Request("r", [1, 2], SamplingParams())
    assert request.resume == NEW == Resume() and not any(NEW.output_ids)


def test_an_arrival_knows_when_it_came() -> None:
    request = Request("r", [1, 2], SamplingParams())
    first, second = Arrival(request, [1, 2]), Arrival(request, [1, 2])
    assert first.time <= second.time
