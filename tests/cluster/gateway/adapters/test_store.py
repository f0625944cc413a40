"""Ray's own store of what was loaded and unloaded, here a dictionary in its place."""

import msgspec
import pytest

from cluster import owner
from cluster.gateway.adapters import store
from engine.request import Adapter

MINE = Adapter("mine", "/adapters/mine", "00", 8)


class KeyValues(dict[bytes, bytes]):
    """`ray.experimental.internal_kv`."""

    def _internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, *, namespace: bytes) -> None:
        self[key] = value

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        return self.get(key)

    def _internal_kv_del(self, key: bytes, *, namespace: bytes) -> None:
        self.pop(key, None)

    def _internal_kv_list(self, prefix: bytes, *, namespace: bytes) -> list[bytes]:
        return [key for key in self if key.startswith(prefix)]


async def test_models_whose_names_begin_alike_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "internal_kv", KeyValues())
    me = owner.this_process()
    of_chat, of_all = (store.RayAdapterStore("squadron", me, model) for model in ("Qwen/chat", "Qwen"))
    await of_chat.put("a/b", change := store.Change(MINE, "1f"))
    assert await of_all.read() == {}
    assert await of_chat.read() == {"a/b": change}
    await of_chat.forget("a/b")
    assert await of_chat.read() == {}


async def test_what_was_stored_without_an_id_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "internal_kv", values := KeyValues())
    own = store.RayAdapterStore("squadron", owner.this_process(), "Qwen")
    await own.put("gone", store.Change(None))
    (prefix,) = (key.removesuffix(b"gone") for key in values)
    values[prefix + b"mine"] = msgspec.json.encode(MINE)
    values[prefix + b"old"] = b"null"
    assert await own.read() == {"gone": store.Change(None), "mine": store.Change(MINE), "old": store.Change(None)}
