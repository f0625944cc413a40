"""A dictionary in place of Ray's own store."""

import pytest

from cluster.weights import head


class KeyValues(dict[bytes, bytes]):
    """`ray.experimental.internal_kv`."""

    def _internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, *, namespace: bytes) -> bool:
        exists = key in self
        if overwrite or not exists:
            self[key] = value
        return exists

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        return self.get(key)


@pytest.fixture
def key_values(monkeypatch: pytest.MonkeyPatch) -> KeyValues:
    monkeypatch.setattr(head, "internal_kv", KeyValues())
    return head.internal_kv
