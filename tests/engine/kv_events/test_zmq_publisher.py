"""What a router hears of an engine, through real sockets: messages as vLLM's own subscribers read
them.
"""

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from engine.config import KVEventsConfig
from engine.core.llm_engine import LLMEngine
from engine.errors import InvalidConfig
from engine.kv_events import events as told
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine

zmq = pytest.importorskip("zmq")
publishers = pytest.importorskip("engine.kv_events.zmq_publisher")

SECONDS = 120
ANYWHERE = "tcp://127.0.0.1:0"
PROMPT = list(range(8, 28)) * 2
ENDS = itertools.count()


# A subscriber's own types, as vLLM's example has them.
class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None


class Cleared(KVCacheEvent, tag="AllBlocksCleared"):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | Cleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(KVEventBatch)


@contextmanager
def telling_engine(knobs: Knobs, **changes: object) -> Iterator[LLMEngine]:
    events = {"enable_kv_cache_events": True, "endpoint": ANYWHERE, "replay_endpoint": ANYWHERE}
    knobs.overrides |= {"kv_events_config": events | changes}
    engine = make_engine(knobs)
    try:
        yield engine
    finally:
        engine.close()


class Router:
    """Asks again for what it has missed, until it has seen what it waits for."""

    def __init__(self, engine: LLMEngine, topic: bytes = b"") -> None:
        self._context = zmq.Context()
        endpoint, replay = engine.keeping._publisher.endpoints
        self.messages = self._context.socket(zmq.SUB)
        self.messages.connect(endpoint)
        self.messages.subscribe(topic)
        self.again = self._context.socket(zmq.DEALER)
        if replay is not None:
            self.again.connect(replay)

    def close(self) -> None:
        self.messages.close(linger=0)
        self.again.close(linger=0)
        self._context.term()

    def ask_again(self, first: int = 0) -> list[tuple[int, KVEventBatch]]:
        self.again.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while True:
            assert self.again.poll(1000 * SECONDS)
            _, number, payload = self.again.recv_multipart()
            if number == (-1).to_bytes(8, "big", signed=True):
                return found
            found.append((int.from_bytes(number, "big"), DECODER.decode(payload)))


@contextmanager
def router_of(engine: LLMEngine, topic: bytes = b"") -> Iterator[Router]:
    router = Router(engine, topic)
    try:
        yield router
    finally:
        router.close()


def answer(engine: LLMEngine, name: str, prompt: list[int], **options: object) -> None:
    add_request(engine, name, prompt, SamplingParams(max_tokens=2, ignore_eos=True, seed=1), **options)
    finish(engine)


def test_blocks_are_told_with_their_tokens_and_parents() -> None:
    with telling_engine(Knobs()) as engine, router_of(engine) as router:
        answer(engine, "r", PROMPT)
        answer(engine, "again", PROMPT)
        answer(engine, "salted", PROMPT, cache_salt="team")
        (first_number, first), (second_number, salted), _ = so_far(engine, router)
        assert (first_number, second_number) == (0, 1), "what was found is not told again"
        one, two = first.events
        assert (one.token_ids, two.token_ids) == (PROMPT[:16], PROMPT[16:32])
        assert one.parent_block_hash is None and [two.parent_block_hash] == one.block_hashes
        assert (one.block_size, one.medium, one.lora_name, one.extra_keys) == (16, "GPU", None, None)
        assert first.data_parallel_rank == 0
        assert salted.events[0].block_hashes != one.block_hashes and salted.events[0].extra_keys
        assert [number for number, _ in router.ask_again(1)] == [1, 2]


def so_far(engine: LLMEngine, router: Router) -> list[tuple[int, KVEventBatch]]:
    """Every message up to one that ends them: the engine does not wait for the sockets' thread."""
    end = f"end {next(ENDS)}"
    engine.keeping._publisher.publish([told.BlockRemoved([], end)])
    while not (found := router.ask_again()) or found[-1][1].events[-1] != BlockRemoved([], end):
        pass
    return found


def test_a_subscriber_hears_of_each_message_from_when_it_is_heard_itself() -> None:
    with telling_engine(Knobs(), topic="kv@here") as engine, router_of(engine, b"kv@") as router:
        number = 0
        while not router.messages.poll(0):  # it takes its time; of a prompt that comes again nothing is told
            answer(engine, f"r{number}", [number % 30, *PROMPT])
            number += 1
        answer(engine, "last", [33, *PROMPT])
        numbers: list[int] = []
        while True:
            assert router.messages.poll(1000 * SECONDS)
            topic, sequence_number, payload = router.messages.recv_multipart()
            assert topic == b"kv@here"
            numbers.append(int.from_bytes(sequence_number, "big"))
            events = DECODER.decode(payload).events
            if any(isinstance(event, BlockStored) and event.token_ids[0] == 33 for event in events):
                break
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_router_knows_exactly_what_the_index_holds() -> None:
    """Of both tiers, whatever is evicted, kept and loaded; and nothing after the workers' loss."""
    with telling_engine(Knobs(num_blocks=12, num_cpu_blocks=9)) as engine, router_of(engine) as router:
        for number in range(12):
            answer(engine, f"r{number}", [number % 5, *PROMPT])
        blocks = engine.scheduler.blocks
        known: dict[str, set[object]] = {"GPU": set(), "CPU": set()}
        events = [event for _, batch in so_far(engine, router)[:-1] for event in batch.events]
        for event in events:
            hashes = set(event.block_hashes)
            if isinstance(event, BlockStored):
                known[event.medium] |= hashes
            else:
                assert known[event.medium] >= hashes, "it was told of"
                known[event.medium] -= hashes
        for medium, pool in (("GPU", blocks.device), ("CPU", blocks.host)):
            held = {int.from_bytes(content[:8], "big") for content in pool._index}
            assert known[medium] == held and held
        engine.executor.crash_at = {engine.scheduler.step}
        answer(engine, "lost", PROMPT)
        events = [event for _, batch in so_far(engine, router) for event in batch.events]
        assert any(isinstance(event, Cleared) for event in events)


def test_engines_of_a_machine_take_neighbouring_ports() -> None:
    with telling_engine(Knobs(), replay_endpoint=None) as first:
        endpoint = first.keeping._publisher.endpoints[0]
        with telling_engine(Knobs(), endpoint=endpoint, replay_endpoint=None) as second:
            assert second.keeping._publisher.endpoints[0] != endpoint
            assert second.keeping._publisher._rank >= 1


def test_all_that_is_kept_is_sent_again_to_one_who_reads_late() -> None:
    number = 5000  # of messages that no buffer of the system has room for
    config = KVEventsConfig(
        enable_kv_cache_events=True, endpoint=ANYWHERE, replay_endpoint=ANYWHERE, buffer_steps=number
    )
    publisher, context = publishers.ZmqPublisher(config), zmq.Context()
    late, other = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    late.set_hwm(1)
    try:
        for each in (late, other):
            each.connect(publisher.endpoints[1])
        for _ in range(number):
            publisher.publish([told.BlockRemoved([1 << 63] * 500, "GPU")])
        last = None
        while last != number - 1:  # the sockets' thread has all
            other.send_multipart((b"", (number - 1).to_bytes(8, "big")))
            last = None if (found := other.recv_multipart())[1] == publishers.END else int.from_bytes(found[1], "big")
            while found[1] != publishers.END:
                found = other.recv_multipart()
        late.send_multipart((b"", bytes(8)))
        assert late.poll(1000 * SECONDS)
        other.send_multipart((b"", publishers.END))
        assert other.recv_multipart()[1] == publishers.END, "asked later: the other answer is complete"
        numbers = []
        while late.poll(1000 * SECONDS) and (frames := late.recv_multipart())[1] != publishers.END:
            numbers.append(int.from_bytes(frames[1], "big"))
        assert numbers == list(range(number))
    finally:
        late.close(linger=0)
        other.close(linger=0)
        context.term()
        publisher.close()


def test_what_cannot_be_listened_on_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"kv_events_config\.endpoint=ipc:///dev/null/socket"):
        publishers.ZmqPublisher(KVEventsConfig(enable_kv_cache_events=True, endpoint="ipc:///dev/null/socket"))


def test_a_full_queue_drops_messages_and_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=ANYWHERE, max_queue_size=1)
    publisher = publishers.ZmqPublisher(config)
    while not publisher._num_dropped:
        publisher.publish([told.AllBlocksCleared()])
    publisher.close()
    publisher.close()
    assert "KV events are dropped: 1 messages wait" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "*", "[::1]", "[::]"])
def test_all_addresses_of_this_machine_are_listened_on(host: str) -> None:
    reached = "::1" if host.startswith("[") else "127.0.0.1"
    try:
        socket.create_server((reached, 0), family=socket.AF_INET6 if ":" in reached else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    where = f"tcp://{host}:0"
    publisher = publishers.ZmqPublisher(
        KVEventsConfig(enable_kv_cache_events=True, endpoint=where, replay_endpoint=where)
    )
    try:
        for endpoint in publisher.endpoints:
            socket.create_connection((reached, int(endpoint.rpartition(":")[2]))).close()
    finally:
        publisher.close()
