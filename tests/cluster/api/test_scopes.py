"""What is read of a request's scope."""

from cluster.api.scopes import path_of, request_id, speaks_anthropic


def test_a_path_is_the_applications_own() -> None:
    assert path_of({"path": "/v1/models"}) == "/v1/models"
    assert path_of({"path": "/here/v1/models", "root_path": "/here"}) == "/v1/models"


def test_an_id_is_there_or_not() -> None:
    assert request_id({"headers": [(b"accept", b"*/*")]}) is None
    assert request_id({"headers": [(b"accept", b"*/*"), (b"x-request-id", b"a-1")]}) == "a-1"


def test_who_speaks_anthropics_api() -> None:
    theirs = [(b"anthropic-version", b"2023-06-01")]
    assert speaks_anthropic({"path": "/v1/messages", "headers": []})
    assert speaks_anthropic({"path": "/v1/models/demo", "headers": theirs})
    assert not speaks_anthropic({"path": "/v1/models/demo", "headers": []})
    assert not speaks_anthropic({"path": "/v1/completions", "headers": theirs})
