"""What of a gateway's requests waits."""

from dataclasses import replace

from cluster.gateway.requests.waiting import Waiting
from engine.admission.queue_limits import NOTHING, Load
from engine.request import Request, Share
from engine.sampling_params import SamplingParams

FIRST = Request("first", [1, 2, 3], SamplingParams(), share=Share("alice"))
SECOND = replace(FIRST, id="second", prompt=[1, 2], share=Share("bob"))


def test_sums_follow_what_comes_and_goes() -> None:
    waiting = Waiting()
    for request in (FIRST, SECOND, replace(FIRST, id="third")):
        waiting.add(request)
    assert waiting.load == Load(3, 8)
    assert (waiting.of("alice"), waiting.of("bob")) == (Load(2, 6), Load(1, 2))
    waiting.remove(FIRST)
    waiting.remove(FIRST)
    assert (waiting.load, waiting.of("alice"), waiting.of("bob")) == (Load(2, 5), Load(1, 3), Load(1, 2))
    waiting.remove(SECOND)
    assert (waiting.of("alice"), waiting.of("bob")) == (Load(1, 3), NOTHING)
    waiting.remove(replace(FIRST, id="third"))
    assert waiting.load == waiting.of("alice") == NOTHING
