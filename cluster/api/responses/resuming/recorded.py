"""A call and its stream's record: which streams are recorded, and the call that continues one."""

import hashlib
import hmac
import secrets
from bisect import bisect_left, bisect_right
from dataclasses import replace

import msgspec

from cluster.api.requests.call import Call
from cluster.api.responses.resuming.streams import StreamRecord


def has_one_choice(call: Call) -> bool:
    """The order of several choices' events depends on other requests."""
    return len(call.requests) == 1 and call.params.num_samples == 1 and call.params.beam_width is None


def new_record(call: Call, key: str) -> StreamRecord:
    """`key`: what the client has shown as its key."""
    seed = secrets.randbits(63) if call.params.seed is None else call.params.seed
    return StreamRecord(_digest(call, key), call.created, seed, call.requests[0].adapter)


def is_record_of(record: StreamRecord, call: Call, key: str) -> bool:
    """Whether the call asks for what the stream's did, with the same key, and has something to
    continue from.
    """
    return record.fingerprint is not None and hmac.compare_digest(record.request, _digest(call, key))


def _digest(call: Call, key: str) -> bytes:
    return hashlib.sha256(msgspec.json.encode([call.kind, call.digest, key])).digest()


def as_recorded(call: Call, request_id: str, record: StreamRecord) -> Call:
    """The call whose answer is the stream's, byte for byte."""
    params = replace(call.params, seed=record.seed, max_tokens=record.max_tokens or call.params.max_tokens)
    request = replace(call.requests[0], id=request_id, params=params, adapter=record.adapter, joins_deltas=False)
    return replace(call, requests=(request,), id=request_id, created=record.created)


def num_known(call: Call, record: StreamRecord, last: int) -> int:
    """How many tokens need not be computed again: those whose events the client has all
    received.
    """
    is_of_texts = call.form.is_plain and call.is_of_texts and not call.counts_events
    if call.params.logprobs is not None or call.echo or call.echoed or not is_of_texts:
        return 0  # such events depend on the events before them
    reached = bisect_right(record.num_events, last)
    return bisect_left(record.num_events, record.num_events[reached - 1]) if reached else 0
