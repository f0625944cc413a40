"""A head that does not answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.head import store

CALLS = [f"_internal_kv_{name}" for name in ("get", "put", "del", "list")]


def test_a_key_is_claimed_once(key_values) -> None:
    assert (store.claim(b"key", b"first"), store.claim(b"key", b"second")) == (True, False)
    assert store.read(b"key") == b"first"
    store.write(b"key", b"third")
    assert store.read(b"key") == b"third"
    store.delete(b"key")
    store.delete(b"key")
    assert store.read(b"key") is None


def test_numbered_keys_are_listed(key_values) -> None:
    for key in (b"a/1", b"a/22", b"b/3"):
        store.write(key, b"")
    assert sorted(store.numbers(b"a/")) == [1, 22]
    assert sorted(store.rests(b"a/")) == [b"1", b"22"]
    store.delete_all(b"a/")
    assert store.rests(b"") == [b"b/3"]


def test_one_that_does_not_answer_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to it")

    monkeypatch.setattr(store, "internal_kv", SimpleNamespace(**dict.fromkeys(CALLS, fail)))
    for call in (
        lambda: store.read(b"key"),
        lambda: store.write(b"key", b""),
        lambda: store.claim(b"key"),
        lambda: store.delete(b"key"),
        lambda: store.numbers(b"key"),
        lambda: store.delete_all(b"key"),
    ):
        with pytest.raises(store.NoRecord, match="does not answer now: no route to it"):
            call()
