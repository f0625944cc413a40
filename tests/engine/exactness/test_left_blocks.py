"""An engine that is to end leaves its requests' blocks; others go on with the same bits, whatever
becomes of these on the way.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.core.llm_engine import LLMEngine
from engine.offload.block_files import Folder
from engine.offload.peers.block_server import BlockServer
from engine.offload.shared_folder import SharedFolder, shared_folder
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_prefill_apart import BLOCK, SECRET, files_in
from tests.engine.exactness.test_tiers import SHARDED, SMALL, damage
from tests.engine.exactness.test_tiers import prompts as short_prompts
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import answers, demo_engine, every_bit

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=120, ignore_eos=True, logprobs=1)
MOST = 10_000  # blocks
NUM_TOKENS = 40  # that each stream has had when its engine ends
KINDS = {"TP=1": {}} | {name: each for name, each in SHARDED.items() if each}
ROOM = {"num_gpu_blocks_override": 400, "swap_space": 0.05, "kv_leaving_size": 1.0, "kv_peer_secret": SECRET}


def prompts() -> list[list[int]]:
    return [(prompt * 20)[:200] for prompt in short_prompts()]


@pytest.fixture(scope="module")
def alone() -> list[object]:
    with demo_engine(**SMALL | {"num_gpu_blocks_override": 400}, enable_prefix_caching=False) as engine:
        return [every_bit(each) for each in answers(engine, [(prompt, PARAMS) for prompt in prompts()])]


@pytest.fixture
def folder() -> Iterator[SharedFolder]:
    held = SharedFolder.hold(shared_folder(secrets.token_hex(8)))
    yield held
    held.leave()
    assert not held.path.exists()


@contextmanager
def leaving_engine(folder: SharedFolder | None, **more: object) -> Iterator[LLMEngine]:
    path = None if folder is None else str(folder.path)
    with demo_engine(**SMALL | ROOM | {"kv_leaving_path": path} | more) as engine:
        yield engine


class Streams:
    """All prompts at once, on one engine after the other."""

    def __init__(self) -> None:
        self.joined = [Accumulator() for _ in prompts()]
        self.output_ids: list[list[int]] = [[] for _ in prompts()]

    def begin(self, engine: LLMEngine, blocks_at: str | None = None) -> None:
        for number, prompt in enumerate(prompts()):
            had = self.joined[number].last
            scores = [] if had is None else [had.outputs[0].cumulative_logprob]
            output_ids = [self.output_ids[number]] if self.output_ids[number] else []
            add_request(
                engine, str(number), prompt, PARAMS, output_ids=output_ids, cumulative_logprobs=scores,
                blocks_at=blocks_at,
            )  # fmt: skip

    def step(self, engine: LLMEngine) -> None:
        shelf = engine.scheduler.blocks.shelf
        assert shelf is None or not shelf.is_late, "every rank tells what it has read, and what is not there"
        for output in engine.step():
            self.joined[int(output.request_id)].add(output)
            self.output_ids[int(output.request_id)] += output.outputs[0].token_ids

    def run_until(self, engine: LLMEngine, is_over: Callable[[], bool]) -> None:
        while not is_over():
            assert engine.has_unfinished_requests()
            self.step(engine)

    def leave(self, engine: LLMEngine, most_blocks: int = MOST) -> None:
        """Until its blocks are stored; tokens come meanwhile."""
        self.begin(engine)
        self.run_until(engine, lambda: min(map(len, self.output_ids)) >= NUM_TOKENS)
        stored: Future[None] = Future()
        engine.leave(most_blocks, stored)
        self.run_until(engine, stored.done)
        assert engine.requests._groups, "streams still run"

    def go_on(self, engine: LLMEngine, blocks_at: str | None) -> list[object]:
        self.begin(engine, blocks_at)
        self.run_until(engine, lambda: not engine.has_unfinished_requests())
        return [every_bit(each.last) for each in self.joined if each.last is not None]

    def num_blocks(self) -> int:
        """Full ones of all prompts and the tokens so far."""
        return sum((len(p) + len(ids) - 1) // BLOCK for p, ids in zip(prompts(), self.output_ids, strict=True))


def left_in(folder: SharedFolder, **kind: object) -> Streams:
    """Those of an engine that has ended."""
    streams = Streams()
    with leaving_engine(folder, **kind) as engine:
        streams.leave(engine)
    return streams


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_another_engine_goes_on_with_the_blocks(
    alone: list[object], kind: dict[str, object], folder: SharedFolder
) -> None:
    streams = Streams()
    with leaving_engine(folder, **kind) as engine:
        streams.leave(engine)
        assert engine.stats().num_blocks_stored > 0
    num_blocks = streams.num_blocks()
    with leaving_engine(None, **kind) as engine:
        assert streams.go_on(engine, str(folder.path)) == alone
        stats = engine.stats()
        assert stats.num_external_hits >= BLOCK * (num_blocks - 2 * len(prompts())), "but for the last ones"
        assert stats.num_prompt_tokens <= 4 * BLOCK * len(prompts())
        assert stats.num_blocks_missed <= 2 * len(prompts())
        assert stats.num_free_cpu_blocks == stats.num_cpu_blocks
        assert engine.scheduler.blocks.shelf is not None, "for a while"


def test_an_engine_that_is_told_of_no_place_has_no_third_tier(alone: list[object]) -> None:
    with leaving_engine(None) as engine:
        assert Streams().go_on(engine, None) == alone
        assert engine.scheduler.blocks.shelf is None


def test_what_another_engine_has_left_is_forgotten_after_a_while(folder: SharedFolder) -> None:
    streams = left_in(folder)
    with leaving_engine(None) as engine:
        streams.go_on(engine, str(folder.path))
        stats, shelf = engine.stats(), engine.scheduler.blocks.shelf
        assert shelf is not None
        shelf._until = 0.0
        answers(engine, [([5] * 40, PARAMS)])
        assert engine.scheduler.blocks.shelf is None and shelf.num_fetching == 0
        assert engine.stats().num_blocks_fetched == stats.num_blocks_fetched > 0, "they still count"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_damaged_and_missing_blocks_are_computed_again(
    alone: list[object], kind: dict[str, object], folder: SharedFolder
) -> None:
    streams = left_in(folder, **kind)
    blocks = [path for path in files_in(folder.path) if path.name != "lock"]
    for number, path in enumerate(blocks[::5]):
        damage(path, number % 5)
    with leaving_engine(None, **kind) as engine:
        assert streams.go_on(engine, str(folder.path)) == alone
        assert engine.stats().num_blocks_missed > 0


@pytest.mark.parametrize("place", ["/dev/shm/squadron-blocks-gone", "127.0.0.1:1/dev/shm/squadron-blocks-gone", ""])
def test_without_any_block_all_is_computed_again(alone: list[object], folder: SharedFolder, place: str) -> None:
    streams = left_in(folder)
    with leaving_engine(None) as engine:
        assert streams.go_on(engine, place) == alone
        assert engine.stats().num_blocks_fetched == 0 < engine.stats().num_blocks_missed


def test_blocks_go_to_another_node(alone: list[object], folder: SharedFolder) -> None:
    streams = left_in(folder)
    server = BlockServer(str(folder.path), "127.0.0.1", SECRET)
    before = folder.last_read
    try:
        with leaving_engine(None) as engine:
            assert streams.go_on(engine, f"{server.address}/dev/shm/squadron-blocks-of-that-node") == alone
            assert engine.stats().num_blocks_fetched > 0
        assert folder.last_read > before
    finally:
        server.close()


def test_a_full_folder_holds_nobody_up(
    alone: list[object], folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, whole = iter(range(100)), Folder.write

    def write(self: Folder, name: str, data: bytes) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, name, data)

    monkeypatch.setattr(Folder, "write", write)
    streams = left_in(folder)
    with leaving_engine(None) as engine:
        assert streams.go_on(engine, str(folder.path)) == alone
        assert engine.stats().num_blocks_fetched > 0 < engine.stats().num_blocks_missed


def test_no_more_blocks_are_stored_than_there_is_room_for(alone: list[object], folder: SharedFolder) -> None:
    streams = Streams()
    with leaving_engine(folder) as engine:
        streams.leave(engine, most_blocks=20)
        assert 20 <= engine.stats().num_blocks_stored <= 20 + len(prompts())
    with leaving_engine(None) as engine:
        assert streams.go_on(engine, str(folder.path)) == alone


def test_blocks_pass_through_a_small_host(alone: list[object], folder: SharedFolder) -> None:
    streams = Streams()
    with leaving_engine(folder, swap_space=2**-8) as engine:
        streams.leave(engine)
        assert engine.stats().num_cpu_blocks < streams.num_blocks()
        assert engine.stats().num_blocks_stored > streams.num_blocks() - 2 * len(prompts())
    with leaving_engine(None) as engine:
        assert streams.go_on(engine, str(folder.path)) == alone
        assert engine.stats().num_prompt_tokens <= 4 * BLOCK * len(prompts())


def test_with_a_folder_of_their_own_they_go_there(alone: list[object], tmp_path: Path) -> None:
    streams = Streams()
    with leaving_engine(None, kv_offloading_path=str(tmp_path)) as other:  # which has looked before
        with leaving_engine(None, kv_offloading_path=str(tmp_path)) as engine:
            streams.leave(engine)
        assert streams.go_on(other, "") == alone
        assert other.stats().num_prompt_tokens <= 4 * BLOCK * len(prompts())


def test_a_frozen_engine_stores_nothing(folder: SharedFolder) -> None:
    with leaving_engine(folder) as engine:
        engine.is_frozen = True
        stored: Future[None] = Future()
        engine.leave(MOST, stored)
        assert stored.done() and engine.scheduler.blocks.shelf is None
