"""YAML, read so that nothing of it is dropped or explained by a traceback."""

from typing import Any

import yaml

Problem = yaml.YAMLError


class Twice(yaml.constructor.ConstructorError):  # type: ignore[misc]  # it comes without types
    """A mapping has a key twice."""


def load(text: str) -> Any:
    """Plain values, as `yaml.safe_load` makes them; raises Problem, with the place of what is wrong
    as `problem_mark`.
    """
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Without it, the last of two equal keys would be taken without a word, and of a date that does
    not exist no error would say where it is.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            problem = f"{str(node.value)[:64]!r} cannot be read: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise Twice(None, None, f"the key {key.value!r} is there twice; keep one of them", key.start_mark)
                seen.add((key.tag, key.value))
        return dict(super().construct_mapping(node, deep))
