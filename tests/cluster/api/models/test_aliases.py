"""Which model an alias stands for."""

import re

import pytest

from cluster.api.models.aliases import Alias, read_aliases
from engine.errors import InvalidConfig

SPLIT = Alias((("steady", 0.8), ("canary", 0.2)))


def test_weights_divide_conversations() -> None:
    asked = [{"messages": [{"role": "user", "content": f"question {number}"}]} for number in range(2000)]
    chosen = [SPLIT.choose(fields) for fields in asked]
    assert 300 <= chosen.count("canary") <= 500  # 400, and five times the standard deviation of 18
    assert chosen == [SPLIT.choose(fields) for fields in asked]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "0"}]},
            {"messages": [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]},
        ),
        ({"user": "0", "prompt": "one"}, {"prompt": "another"}),
        (
            {"metadata": {"user_id": "0"}, "messages": []},
            {"messages": [{"role": "user", "content": "another conversation of the same person"}]},
        ),
        ({"input": [{"role": "user", "content": "0"}]}, {"input": [{"role": "assistant", "content": "yes"}]}),
    ],
)
def test_a_conversation_stays_with_its_model(first: dict[str, object], later: dict[str, object]) -> None:
    chosen = set()
    for number in range(100):
        begun = {name: _numbered(value, number) for name, value in first.items()}
        gone_on = {name: begun[name] + value if isinstance(value, list) else value for name, value in later.items()}
        assert SPLIT.choose(begun) == SPLIT.choose(begun | gone_on)
        chosen.add(SPLIT.choose(begun))
    assert chosen == {"steady", "canary"}


def _numbered(value: object, number: int) -> object:
    if isinstance(value, dict):
        return {name: _numbered(inner, number) for name, inner in value.items()}
    if isinstance(value, list):
        return [message | {"content": message["content"].replace("0", str(number))} for message in value]
    return str(value).replace("0", str(number))


def test_a_model_without_weight_gets_nothing() -> None:
    aliases = read_aliases({"a": {"one": 1, "two": 0}, "b": "two"}, ["one", "two"])
    assert aliases["a"].shares == (("one", 1),)
    assert {aliases["b"].choose({"prompt": str(number)}) for number in range(50)} == {"two"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"one": "two"}, "'one' is a model's own name"),
        ({"a": "three"}, "'a' stands for 'three', and there are 'one', 'two'"),
        ({"a": {"one": -1.0}}, "'a' has -1.0 as the weight of 'one'; it is a number from 0"),
        ({"a": {"one": float("nan")}}, "'a' has nan as the weight of 'one'"),
        ({"a": {"one": 1e308, "two": 1e308}}, "the weights of 'a' have no finite sum"),
        ({"": "one"}, "aliases: one has no name"),
        ({"a": {"one": 0.0}}, "'a' gives weight to no model"),
        ({"a": {}}, "'a' gives weight to no model"),
    ],
)
def test_refuses(given: dict[str, str | dict[str, float]], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(sentence)):
        read_aliases(given, ["one", "two"])
