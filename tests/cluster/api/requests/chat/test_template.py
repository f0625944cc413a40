"""What a request may give to the chat template."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cluster.api.requests.chat.template import MAX_DOCUMENTS, MAX_VARIABLES, Documents, TemplateVariables

VARIABLES, DOCUMENTS = TypeAdapter[Any](TemplateVariables), TypeAdapter[Any](Documents)


def test_variables_of_any_value_are_passed_on() -> None:
    given = {"enable_thinking": False, "style": ["brief"], "_x9": {"a": None}}
    assert VARIABLES.validate_python(given) == given


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "raise_exception", "namespace", "self"])
def test_what_the_server_sets_is_not_the_requests_to_set(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot be set here"):
        VARIABLES.validate_python({name: 1})


@pytest.mark.parametrize("name", ["", "9x", "a-b", "a b", "x" * 65, "ä"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is no name of a variable"):
        VARIABLES.validate_python({name: 1})


def test_there_is_a_limit_to_each() -> None:
    assert len(VARIABLES.validate_python({f"x{number}": 0 for number in range(MAX_VARIABLES)})) == MAX_VARIABLES
    with pytest.raises(ValidationError, match=f"{MAX_VARIABLES}"):
        VARIABLES.validate_python({f"x{number}": 0 for number in range(MAX_VARIABLES + 1)})
    with pytest.raises(ValidationError, match=f"{MAX_DOCUMENTS}"):
        DOCUMENTS.validate_python([{}] * (MAX_DOCUMENTS + 1))
