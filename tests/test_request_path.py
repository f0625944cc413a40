"""A request is carried whole: whoever only passes it on names none of its fields."""

import pytest

from tests.figures import files_that_name


@pytest.mark.parametrize(
    ("field", "files"),
    [
        (
            "cache_salt",
            {
                "cluster/api/requests/protocol.py",  # as it comes by HTTP, and by handle
                "cluster/api/dialects/messages_api/fields.py",  # and in the words of other APIs
                "cluster/api/dialects/responses_api/fields.py",
                "cluster/api/requests/call.py",  # the edge that makes the request
                "cluster/api/requests/pooled/protocol.py",  # the same for embeddings, scores and ranks
                "cluster/api/requests/pooled/pooled_call.py",
                "cluster/api/keys/key.py",  # keeps the salts of keys apart
                "engine/request.py",
                "cluster/gateway/engines/prefixes.py",  # who reads it: which prompts share blocks
                "engine/admission/admission.py",
            },
        ),
        (
            "joins_deltas",
            {"cluster/api/responses/resuming/recorded.py", "engine/request.py", "cluster/gateway/requests/journal.py"},
        ),
    ],
)
def test_a_field_is_named_where_it_is_made_and_read(field: str, files: set[str]) -> None:
    assert files_that_name(field) == files
