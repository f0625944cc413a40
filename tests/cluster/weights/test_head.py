"""A head that does not answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.weights import head


def test_a_key_is_claimed_once(key_values) -> None:
    assert (head.claim(b"key", b"first"), head.claim(b"key", b"second")) == (True, False)
    assert head.read(b"key") == b"first"
    head.write(b"key", b"third")
    assert head.read(b"key") == b"third"


def test_one_that_does_not_answer_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to it")

    monkeypatch.setattr(head, "internal_kv", SimpleNamespace(_internal_kv_get=fail, _internal_kv_put=fail))
    for call in (lambda: head.read(b"key"), lambda: head.write(b"key", b""), lambda: head.claim(b"key")):
        with pytest.raises(head.NoRecord, match="does not answer now: no route to it"):
            call()
