"""Ray's own store of what was loaded and unloaded, here a dictionary in its place."""

import asyncio

import pytest

from cluster.gateway.adapters import store
from engine.request import Adapter
from tests.cluster.head.key_values import KeyValues

MINE = Adapter("mine", "/adapters/mine", "00", 8)


def of_model(model: str) -> store.RayAdapterStore:
    return store.RayAdapterStore("squadron", "run", model, f"/{model}")


async def test_models_whose_names_begin_alike_have_their_own(key_values: KeyValues) -> None:
    of_chat, of_all = of_model("Qwen/chat"), of_model("Qwen")
    assert await of_chat.swap("a/b", None, change := store.Change(MINE, "1f"))
    assert await of_all.read() == {}
    assert await of_chat.read() == {"a/b": change}
    assert await of_chat.swap("a/b", change, None)
    assert await of_chat.read() == {}


async def test_only_what_was_expected_is_changed(key_values: KeyValues) -> None:
    own = of_model("Qwen")
    first, second = store.Change(MINE, "1"), store.Change(MINE, "2")
    assert not await own.swap("mine", first, second)
    assert await own.swap("mine", None, first)
    assert await own.swap("mine", None, first), "an answer was lost, and it is asked again"
    assert not await own.swap("mine", None, second) and not await own.swap("mine", second, None)
    assert await own.read() == {"mine": first}
    assert await own.swap("mine", first, second) and await own.read() == {"mine": second}


async def test_of_many_at_once_each_name_has_one_and_none_is_lost(key_values: KeyValues) -> None:
    """From as many threads."""
    stores = [of_model("Qwen") for _ in range(6)]
    swaps = [own.swap(name, None, store.Change(MINE, f"{i}")) for name in "abc" for i, own in enumerate(stores)]
    stored = await asyncio.gather(*swaps)
    assert [sum(stored[first : first + 6]) for first in (0, 6, 12)] == [1, 1, 1]
    assert sorted(await stores[0].read()) == ["a", "b", "c"]


@pytest.mark.parametrize("num_others", [1, store.KEPT - 1, store.KEPT, 3 * store.KEPT])
async def test_who_was_slow_undoes_nothing(key_values: KeyValues, num_others: int) -> None:
    """Others change the store so often, once this one has looked, that its number is free."""
    own, other = of_model("Qwen"), of_model("Qwen")

    def change() -> None:
        for i in range(num_others):
            assert other._swap(f"{i % 3}", other._last()[1].get(f"{i % 3}"), store.Change(MINE, f"{i}"))

    key_values.then = change
    assert await own.swap("mine", None, store.Change(MINE, "own"))
    assert sorted(await other.read()) == sorted({f"{i % 3}" for i in range(num_others)} | {"mine"})
    assert len(key_values) <= store.KEPT
