"""Which receivers are a model's, by their names."""

import pytest

from cluster.actors import named
from cluster.weights.groups import receivers
from cluster.weights.groups.receivers import end_receivers, running_receivers


def test_names_that_begin_alike_are_of_other_models_and_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = [("app", "Engine"), ("app", "Engine-x"), ("app", "Engine-x-y"), ("app-Engine", "x"), ("ap", "p-Engine")]
    names = {owner: f"{receivers._prefix(*owner)}0a1b" for owner in owners}
    told = [{"name": name, "namespace": named.NAMESPACE} for name in names.values()]
    told.append({"name": names[owners[0]], "namespace": "another"})
    ended: list[str] = []
    monkeypatch.setattr(named, "list_named_actors", lambda all_namespaces: told)
    monkeypatch.setattr(receivers, "find_actor", lambda name: name)
    monkeypatch.setattr(receivers, "end_actor", ended.append)
    for owner in owners:
        assert running_receivers(*owner) == [names[owner]]
    end_receivers("app")
    assert ended == [names[owner] for owner in owners[:3]]
