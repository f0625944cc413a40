"""The client beside a flood, and what it makes of answers."""

import pytest

from tests.cluster.api.scripted import MODEL, running
from tests.end_to_end.chaos.prober import Told, probing


def test_it_tells_refusals_and_answers() -> None:
    with running() as server:
        server.service.is_full = True
        with probing(server.url, MODEL) as prober:
            for _ in range(3):
                prober.next()
        refused = prober.told
        server.service.is_full = False
        with probing(server.url, MODEL) as prober:
            prober.next()
    assert len(refused) >= 3 and all(told.is_refusal and told.seconds > 0 for told in refused)
    assert {(told.status, told.error) for told in prober.told} == {(200, "")}


@pytest.mark.parametrize(
    ("told", "is_refusal"),
    [
        (Told(503, 0.1, "server_overloaded", "120"), True),
        (Told(503, 0.1, "server_overloaded", "121"), False),
        (Told(503, 0.1, "server_overloaded", None), False),
        (Told(503, 0.1, "engine_restarting", "5"), False),
        (Told(0, 0.1, "ConnectionResetError()"), False),
        (Told(200, 0.1), False),
    ],
)
def test_a_refusal_is_what_is_documented(told: Told, is_refusal: bool) -> None:
    assert told.is_refusal == is_refusal
