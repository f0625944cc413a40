"""When an actor ends that lasts as long as its application."""

from collections.abc import Iterator

import pytest
from ray.exceptions import RayError

from cluster.actors import lifetime

REPLICA = "SERVE_REPLICA::app#EngineDeployment#1"
OTHERS = "SERVE_REPLICA::app-2#EngineDeployment#1"
GONE = [[OTHERS]] * lifetime.GONE_LOOKS


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    monkeypatch.setattr(lifetime, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lifetime.ray, "kill", found.append)
    monkeypatch.setattr(lifetime.ray, "get_runtime_context", lambda: lifetime)
    monkeypatch.setattr(lifetime, "current_actor", "itself", raising=False)
    return found


@pytest.mark.parametrize(
    "looks",
    [GONE, [[OTHERS, REPLICA], *GONE], [*GONE[1:], [REPLICA], *GONE], [*GONE[1:], None, GONE[0]]],
    ids=["it has gone", "it goes", "it was being replaced", "the head did not answer once"],
)
def test_it_ends_when_several_looks_in_a_row_have_found_nothing(
    looks: list[list[str] | None], ended: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(looks)

    def look(left: Iterator[list[str] | None] = left) -> list[str]:
        names = next(left)
        if names is None:
            raise RayError("the head does not answer")
        return names

    monkeypatch.setattr(lifetime, "actor_names", look)
    lifetime._look("app")
    assert ended == ["itself"] and next(left, "none") == "none"
