"""How a client names an event."""

import pytest

from cluster.api.errors import ApiError
from cluster.api.responses.resuming.streams import parse_event_id


def test_an_event_is_named_by_its_request_and_number() -> None:
    assert parse_event_id("cmpl-1:7") == ("cmpl-1", 7)
    assert parse_event_id("a:b:12") == ("a:b", 12)


@pytest.mark.parametrize(
    "text", ["", "cmpl-1", "cmpl-1:", "cmpl-1:0", "cmpl-1:-1", "cmpl-1:01", "x:1234567890", "x:\u0663"]
)
def test_another_name_is_of_no_stream(text: str) -> None:
    with pytest.raises(ApiError, match="can be resumed: it is unknown or has expired") as raised:
        parse_event_id(text)
    assert (raised.value.status, raised.value.code, raised.value.param) == (404, "unknown_stream", "Last-Event-ID")
