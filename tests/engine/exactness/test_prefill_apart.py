"""Prompts that another engine has computed are answered with the same bits, whatever becomes of
their blocks on the way.
"""

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.core.llm_engine import LLMEngine
from engine.offload.block_files import Folder
from engine.offload.peers import peers
from engine.offload.peers.block_server import BlockServer
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_tiers import PARAMS, SHARDED, SMALL, damage, prompts
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import answers, demo_engine, every_bit

BLOCK = 16
SECRET = "a secret of the application's"
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
NUM_SHARED = sum((len(prompt) - 1) // BLOCK for prompt in prompts())  # blocks: the last token is always computed


@pytest.fixture(scope="module")
def alone() -> list[object]:
    with demo_engine(**SMALL, enable_prefix_caching=False) as engine:
        return [every_bit(answers(engine, [(prompt, PARAMS)])[0]) for prompt in prompts()]


def options(folder: Path, role: str, **more: object) -> dict[str, object]:
    """Who computes has room for all prompts: a block that is evicted before it was copied is not
    handed over.
    """
    room = {"num_gpu_blocks_override": 400} if role == "producer" else {}
    return {**SMALL, **room, "swap_space": 0.05, "kv_offloading_path": str(folder), "kv_role": role, **more}


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def compute(engine: LLMEngine, folder: Path) -> None:
    """All prompts at once. When one's answer comes, all of its blocks are there, of each rank."""
    groups = {}
    for number, prompt in enumerate(prompts()):
        add_request(engine, str(number), prompt, ONE_TOKEN)
        groups[str(number)] = engine.requests._groups[str(number)]
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.finished, "the only token comes with the end"
            hashes = groups.pop(output.request_id).seqs[0].block_hashes
            wanted = {f"{content.hex()}.{rank}" for content in hashes for rank in range(engine.config.world_size)}
            assert hashes and wanted <= {path.name for path in files_in(folder)}
    assert not groups


def answer(engine: LLMEngine, blocks_at: str | None = None) -> list[object]:
    """Those prompts, at once, by an engine that is told that they have been computed."""
    joined = [Accumulator() for _ in prompts()]
    for number, prompt in enumerate(prompts()):
        add_request(engine, str(number), prompt, PARAMS, is_prefilled=True, blocks_at=blocks_at)
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined[int(output.request_id)].add(output)
    return [every_bit(each.last) for each in joined if each.last is not None]


@pytest.mark.parametrize("sharded", SHARDED.values(), ids=SHARDED)
def test_an_engine_answers_prompts_that_another_one_has_computed(
    alone: list[object], sharded: dict[str, object], tmp_path: Path
) -> None:
    with demo_engine(**options(tmp_path, "consumer", **sharded)) as answering:  # which has looked before
        with demo_engine(**options(tmp_path, "producer", **sharded)) as computing:
            compute(computing, tmp_path)
        before = files_in(tmp_path)
        assert answer(answering) == alone
        stats = answering.stats()
        assert stats.num_external_hits == BLOCK * NUM_SHARED
        assert (stats.num_blocks_fetched, stats.num_blocks_missed, stats.num_blocks_stored) == (NUM_SHARED, 0, 0)
        assert files_in(tmp_path) == before, "who answers stores nothing"


def test_an_engine_that_is_told_of_prompts_which_nobody_has_computed_computes_them(
    alone: list[object], tmp_path: Path
) -> None:
    with demo_engine(**options(tmp_path, "consumer")) as engine:
        assert answer(engine) == alone
        assert engine.stats().num_blocks_fetched == 0 < engine.stats().num_blocks_missed
        assert engine.stats().num_free_cpu_blocks == engine.stats().num_cpu_blocks


def test_blocks_of_other_weights_are_not_found(alone: list[object], tmp_path: Path) -> None:
    with demo_engine(**options(tmp_path, "producer", load_format="dummy", seed=5)) as computing:
        compute(computing, tmp_path)
    with demo_engine(**options(tmp_path, "consumer")) as engine:
        assert answer(engine) == alone
        assert engine.stats().num_blocks_fetched == 0


@pytest.mark.parametrize("sharded", SHARDED.values(), ids=SHARDED)
def test_damaged_and_missing_blocks_are_computed_again(
    alone: list[object], sharded: dict[str, object], tmp_path: Path
) -> None:
    with demo_engine(**options(tmp_path, "producer", **sharded)) as computing:
        compute(computing, tmp_path)
    for number, path in enumerate(files_in(tmp_path)[::5]):
        damage(path, number % 5)
    with demo_engine(**options(tmp_path, "consumer", **sharded)) as engine:
        assert answer(engine) == alone
        stats = engine.stats()
        assert stats.num_blocks_missed > 0 and stats.num_free_cpu_blocks == stats.num_cpu_blocks


def test_a_full_folder_is_a_smaller_one(
    alone: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = iter(range(NUM_SHARED // 2))
    whole = Folder.write

    def write(self: Folder, name: str, data: bytes) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, name, data)

    monkeypatch.setattr(Folder, "write", write)
    with demo_engine(**options(tmp_path, "producer")) as computing:
        assert [len(each.outputs[0].token_ids) for each in answers(computing, [(p, ONE_TOKEN) for p in prompts()])]
    assert any("No space left on device" in message for message in caplog.messages)
    with demo_engine(**options(tmp_path, "consumer")) as engine:
        assert answer(engine) == alone
        stats = engine.stats()
        assert stats.num_blocks_fetched > 0 < stats.num_blocks_missed


@contextmanager
def serving(folder: Path, secret: str = SECRET) -> Iterator[BlockServer]:
    server = BlockServer(str(folder), "127.0.0.1", secret)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def elsewhere(folder: Path, **more: object) -> Iterator[LLMEngine]:
    """An engine on another node, which has a folder of its own, that nobody writes to."""
    (folder / "own").mkdir(parents=True)
    with demo_engine(**options(folder / "own", "consumer", kv_peer_secret=SECRET, **more)) as engine:
        yield engine
        assert files_in(folder / "own") == []
        stats = engine.stats()
        assert stats.num_free_cpu_blocks == stats.num_cpu_blocks and not engine.has_unfinished_requests()


@pytest.mark.parametrize("sharded", SHARDED.values(), ids=SHARDED)
def test_blocks_come_from_another_node(alone: list[object], sharded: dict[str, object], tmp_path: Path) -> None:
    computed = tmp_path / "computed"
    with demo_engine(**options(computed, "producer", **sharded)) as computing:
        compute(computing, computed)
    with serving(computed) as server, elsewhere(tmp_path, **sharded) as engine:
        assert answer(engine, server.address) == alone
        stats = engine.stats()
        assert (stats.num_blocks_fetched, stats.num_blocks_missed) == (NUM_SHARED, 0)
        assert stats.num_external_hits == BLOCK * NUM_SHARED


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("computed")
    with demo_engine(**options(folder, "producer")) as computing:
        compute(computing, folder)
    return folder


def test_blocks_that_are_damaged_or_gone_on_another_node_are_computed(
    alone: list[object], computed: Path, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(computed, served)
    for number, path in enumerate(files_in(served)[::5]):
        damage(path, number % 5)
    with serving(served) as server, elsewhere(tmp_path) as engine:
        assert answer(engine, server.address) == alone
        assert engine.stats().num_blocks_missed > 0 < engine.stats().num_blocks_fetched


def test_a_node_that_is_lost_in_the_middle(alone: list[object], computed: Path, tmp_path: Path) -> None:
    with serving(computed) as server, elsewhere(tmp_path) as engine:
        whole, num_served = server.answers._opened, iter(range(NUM_SHARED // 2))

        def opened(name: str) -> int | None:
            if next(num_served, None) is None:
                threading.Thread(target=server.close).start()
            return whole(name)

        server.answers._opened = opened  # type: ignore[method-assign]
        assert answer(engine, server.address) == alone
        assert engine.stats().num_blocks_missed > 0 < engine.stats().num_blocks_fetched


def test_a_node_of_another_application_gives_nothing(alone: list[object], computed: Path, tmp_path: Path) -> None:
    with serving(computed, "another secret") as server, elsewhere(tmp_path) as engine:
        assert answer(engine, server.address) == alone
        assert engine.stats().num_blocks_fetched == 0 < engine.stats().num_blocks_missed


def test_a_node_that_never_answers_costs_a_bounded_time(
    alone: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, elsewhere(tmp_path) as engine:
        began = time.monotonic()
        assert answer(engine, f"127.0.0.1:{silent.getsockname()[1]}") == alone
        with_it = time.monotonic() - began
        assert engine.stats().num_blocks_fetched == 0 < engine.stats().num_blocks_missed
    with elsewhere(tmp_path / "again") as engine:
        began = time.monotonic()
        assert answer(engine) == alone
        assert with_it < time.monotonic() - began + 5.0, "what is late is late once, and not block after block"
