"""What is in which shard, and which shards there are."""

import collections
import uuid

import pytest

from cluster.actors import named
from cluster.actors.named import NAMESPACE
from cluster.gateway.streams.shard import Shard, number_of, running_shards


def test_ids_are_dealt_out_evenly_and_alike_in_every_process() -> None:
    ids = [f"cmpl-{uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128).hex}" for number in range(4000)]
    for count in (1, 2, 3, 8):
        numbers = collections.Counter(number_of(each, count) for each in ids)
        assert sorted(numbers) == list(range(count))
        assert max(numbers.values()) < 1.2 * len(ids) / count
    assert [number_of(each, 8) for each in ("cmpl-0", "resp_1", "\ud800")] == [0, 7, 0]


def test_the_shards_of_an_application_are_known_by_their_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = {Shard("app", 0, 1), Shard("app", 3, 12), Shard("app-0of1-0", 0, 1), Shard("", 1, 2)}
    told = [{"name": each.actor_name(twin), "namespace": NAMESPACE} for each in shards for twin in (0, 1)]
    told += [{"name": Shard("app", 1, 2).actor_name(0), "namespace": "another"}, {"name": "app", "namespace": "serve"}]
    monkeypatch.setattr(named, "list_named_actors", lambda all_namespaces: told)
    for app_name in ("app", "app-0of1-0", "", "none"):
        assert running_shards(app_name) == {each for each in shards if each.app_name == app_name}
