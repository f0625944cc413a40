"""Changes of a cache, in order, as the events that tell of them."""

from engine.kv_events.changes import Changes
from engine.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, hash_number

A, B = bytes(range(16)), bytes(range(1, 17))


def test_they_are_told_in_order_and_once() -> None:
    changes = Changes(16)
    changes.stored(A, None, [1, 2], b"", None)
    changes.removed(A, "GPU")
    changes.removed(B, "GPU")
    changes.stored_on_host(A)
    changes.removed(A, "CPU")
    a, b = hash_number(A), hash_number(B)
    assert changes.take() == [
        BlockStored([a], None, [1, 2], 16, None, "GPU"),
        BlockRemoved([a, b], "GPU"),
        BlockStored([a], None, [], 16, None, "CPU"),
        BlockRemoved([a], "CPU"),
    ]
    assert changes.take() == []


def test_adapters_and_salts_are_told() -> None:
    changes = Changes(16)
    changes.stored(B, A, [3], b"\x01\xff", "terse")
    (event,) = changes.take()
    assert event == BlockStored([hash_number(B)], hash_number(A), [3], 16, None, "GPU", "terse", [["01ff"]])


def test_what_is_gone_with_the_workers_needs_no_other_event() -> None:
    changes = Changes(16)
    changes.stored_on_host(A)
    changes.cleared()
    assert changes.take() == [AllBlocksCleared()]
