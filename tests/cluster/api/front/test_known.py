"""What is known of a request by its headers."""

import pytest

from cluster.api.front.known import Known, known
from cluster.headers.full_queue import LET_IN, REFUSED
from engine.admission.queue_limits import Load


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("0", None), ("soon", None), (None, None)])
def test_a_wrong_number_of_seconds_is_none(text: str | None, seconds: float | None) -> None:
    headers = [(b"content-length", b"240"), (REFUSED.encode(), b"7"), (LET_IN.encode(), b"1.2")]
    if text is not None:
        headers.append((b"x-request-timeout", text.encode()))
    assert known({"type": "http", "headers": headers}, 50) == Known(Load(1, 50), seconds, 7, "1.2")
