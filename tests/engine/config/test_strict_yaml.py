"""YAML of which nothing is dropped."""

import pytest
import yaml

from engine.config import strict_yaml


def test_values_are_those_of_a_safe_loader() -> None:
    text = "a: [1, 0.5, true, null, 2026-02-28]\nb: &b {c: x}\nd: *b\ne: {<<: *b, f: 2}\n"
    assert strict_yaml.load(text) == yaml.safe_load(text)
    assert strict_yaml.load("") is None


@pytest.mark.parametrize(("text", "line"), [("a: 1\nb: 2\na: 3\n", 2), ("x:\n- {a: 1,\n   a: 1}\n", 2)])
def test_a_key_that_is_there_twice(text: str, line: int) -> None:
    with pytest.raises(strict_yaml.Twice, match="the key 'a' is there twice") as found:
        strict_yaml.load(text)
    assert found.value.problem_mark.line == line


@pytest.mark.parametrize("value", ["2026-02-30", "!!int x", "9" * 5000])
def test_what_cannot_be_read_has_its_place(value: str) -> None:
    with pytest.raises(yaml.YAMLError, match="cannot be read") as failed:
        strict_yaml.load(f"a: 1\nb: {value}\n")
    assert (failed.value.problem_mark.line, failed.value.problem_mark.column) == (1, 3)


def test_objects_are_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="python/object"):
        strict_yaml.load("!!python/object/apply:os.getcwd []")
