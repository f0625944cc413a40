"""Ray's own store of what was loaded and unloaded, here a dictionary in its place."""

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
    await of_chat.put("a/b", MINE)
    assert await of_all.read() == {}
    assert await of_chat.read() == {"a/b": MINE}
    await of_chat.forget("a/b")
    assert await of_chat.read() == {}
