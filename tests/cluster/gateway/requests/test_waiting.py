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
    assert waiting.num_of == {"alice": 2, "bob": 1}
    waiting.remove(FIRST)
    waiting.remove(FIRST)
    assert (waiting.load, waiting.num_of) == (Load(2, 5), {"alice": 1, "bob": 1})
    waiting.remove(SECOND)
    assert dict(waiting.num_of) == {"alice": 1}
    waiting.remove(replace(FIRST, id="third"))
    assert (waiting.load, dict(waiting.num_of)) == (NOTHING, {})
