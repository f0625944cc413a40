"""A node fetches only the files that its own pipeline stages read."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cluster.download.choice import Share, shares
from cluster.download.disk.room import PARTIAL
from cluster.download.models import fetched, pinned
from cluster.launch.packages import ROOT
from cluster.workers.group.agreement import whole_sample
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.local_executor import LocalExecutor
from engine.worker.ranks import LOOPBACK, join_store
from engine.worker.worker import Worker
from tests.cluster.download.conftest import DEMO, NAME
from tests.cluster.download.hub_server import SmallHub
from tests.cluster.download.parts import ALL, INDEX, LAST, OF_STAGE, save_in_parts
from tests.cluster.workers.ranks import make_config, run
from tests.doubles.thread_executor import ThreadExecutor

STAGES = [Share(frozenset({stage}), 2) for stage in range(2)]
FETCH = """
import sys
from cluster.download.models import fetched
from cluster.download.choice import Share
from engine.config import EngineConfig
from engine.errors import InvalidConfig
for stage in sys.argv[3:]:
    share = None if stage == "all" else Share(frozenset({int(stage)}), 2)
    try:
        print(fetched(EngineConfig.create(model=sys.argv[1], download_dir=sys.argv[2]), share=share).model)
    except InvalidConfig as error:
        print(error)
"""


@pytest.fixture
def contents(hub: SmallHub, tmp_path: Path) -> dict[str, bytes]:
    """Of the model that the hub has, by name."""
    made = save_in_parts(tmp_path / "published")
    hub.repos[NAME].push(made)
    return made


def weights_in(config: EngineConfig) -> set[str]:
    return {path.name for path in Path(config.model).iterdir() if path.suffix == ".safetensors"}


def sent(hub: SmallHub) -> dict[str, int]:
    return {name: size for name, size in hub.sent.items() if name in ALL}


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it is whole by now, and has another name
        return 0


def command(config: EngineConfig, *stages: str) -> list[str]:
    return [sys.executable, "-c", FETCH, NAME, str(config.download_dir), *stages]


def test_nodes_have_what_their_stages_need() -> None:
    both, first, last = None, *STAGES
    assert shares(["a", "a"], 1) == [both, both]
    assert shares(["a", "a", "b", "b"], 2) == [first, first, last, last]
    assert shares(["b", "a", "b"], 1) == [
        Share(frozenset({0, 2}), 3),
        Share(frozenset({1}), 3),
        Share(frozenset({0, 2}), 3),
    ]
    assert (first.has_last, last.has_last) == (False, True)


def test_each_node_fetches_its_own_files(
    hub: SmallHub, config: EngineConfig, contents: dict[str, bytes], tmp_path: Path
) -> None:
    config = pinned(config)
    for stage, share in enumerate(STAGES):
        node = config.model_copy(update={"download_dir": str(tmp_path / f"node {stage}")})
        found = fetched(node, share=share)
        assert weights_in(found) == OF_STAGE[stage]
        assert all((Path(found.model) / name).read_bytes() == contents[name] for name in OF_STAGE[stage])
        num_requests = len(hub.requests)
        assert fetched(node, share=share) == found
        assert len(hub.requests) == num_requests, "it is here"
    nodes = Counter([*OF_STAGE[0], *OF_STAGE[1]])
    assert sent(hub) == {name: count * len(contents[name]) for name, count in nodes.items()}


def test_the_rest_is_fetched_when_it_is_needed(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]) -> None:
    config = pinned(config)
    fetched(config, share=STAGES[0])
    whole = fetched(config)
    assert weights_in(whole) == ALL
    assert sent(hub) == {name: len(contents[name]) for name in ALL}
    num_requests = len(hub.requests)
    for share in (None, *STAGES):
        assert fetched(config, share=share) == whole
    assert len(hub.requests) == num_requests


def test_shares_make_a_whole(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]) -> None:
    config = pinned(config)
    for share in STAGES:
        found = fetched(config, share=share)
    num_requests = len(hub.requests)
    assert fetched(config) == found
    assert len(hub.requests) == num_requests
    assert sent(hub) == {name: len(contents[name]) for name in ALL}


def test_a_file_that_has_gone_is_fetched_again(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]) -> None:
    found = fetched(config, share=STAGES[1])
    lost = Path(found.model) / LAST
    lost.resolve().unlink()
    assert fetched(config, share=STAGES[1]) == found
    assert lost.read_bytes() == contents[LAST]
    assert sent(hub) == {name: (1 + (name == LAST)) * len(contents[name]) for name in OF_STAGE[1]}


def test_a_killed_process_loses_nothing_that_came(
    hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]
) -> None:
    """Nor does a later one take what came for the whole."""
    hub.halt_after = 1 << 20  # only of files that are longer
    blobs = Path(str(config.download_dir)) / "models--squadron--demo" / "blobs"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(config, "0"), cwd=ROOT, **quiet) as process:
        assert hub.has_halted.wait(60)
        while not any(size_of(path) >= 1 << 19 for path in blobs.glob(f"*{PARTIAL}")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    hub.halt_after = None
    hub.go_on.set()
    found = fetched(config, share=STAGES[0])
    assert weights_in(found) == OF_STAGE[0]
    assert all((Path(found.model) / name).read_bytes() == contents[name] for name in OF_STAGE[0])
    assert any(start >= 1 << 19 for name, start in hub.ranges if name in OF_STAGE[0]), "it went on"
    assert weights_in(fetched(config)) == ALL


def test_offline_a_share_is_not_the_whole(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]) -> None:
    folder = fetched(config, share=STAGES[0]).model
    absent = "HF_HUB_OFFLINE is set, and squadron/demo (revision "
    for has_record in (True, False):  # without one, as if another program had fetched it
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command(config, "0", "1", "all"), env=environment, capture_output=True, text=True, cwd=ROOT, timeout=60
        )
        found, *others = done.stdout.splitlines()
        assert found == folder, done.stderr
        assert [line.startswith(absent) for line in others] == [True, True]
        assert ("are whole by their headers" in done.stderr) == (not has_record)
        for record in (Path(str(config.download_dir)) / ".squadron" / "fetched").iterdir():
            record.unlink()


@pytest.mark.parametrize("has_index", [False, True])
def test_one_file_is_the_whole_model(
    hub: SmallHub, config: EngineConfig, contents: dict[str, bytes], has_index: bool
) -> None:
    """Also beside an index, which is not read then."""
    index = {INDEX: contents[INDEX]} if has_index else {}
    hub.add(NAME, DEMO, **index)
    found = fetched(config, share=STAGES[0])
    assert weights_in(found) == {"model.safetensors"}
    num_requests = len(hub.requests)
    assert fetched(found) == found
    assert len(hub.requests) == num_requests


def test_dummy_weights_have_no_files(hub: SmallHub, config: EngineConfig, contents: dict[str, bytes]) -> None:
    found = fetched(config.model_copy(update={"load_format": "dummy"}), share=STAGES[0])
    assert weights_in(found) == set() and sent(hub) == {}


def test_a_draft_model_is_fetched_where_it_guesses(hub: SmallHub, contents: dict[str, bytes], tmp_path: Path) -> None:
    hub.add("squadron/draft", DEMO)
    names = {"model": "squadron/draft"}
    for stage, share in enumerate(STAGES):
        node = str(tmp_path / f"node {stage}")
        config = EngineConfig.create(model=NAME, download_dir=node, pipeline_parallel_size=2, speculative_config=names)
        found = fetched(pinned(config), share=share)
        assert found.draft is not None
        assert (Path(found.draft.model) / "model.safetensors").exists() == share.has_last
        assert ("model.safetensors" in hub.sent) == share.has_last


class OnTwoNodes(ThreadExecutor):
    """Each of two stages with what its own node has fetched."""

    def _make(self, rank: int, store: Any) -> Worker:
        mine = store if rank == 0 else join_store(LOOPBACK, store.port)
        node = self._config.model_copy(update={"download_dir": f"{self._config.download_dir} {rank}"})
        return Worker(fetched(node, share=STAGES[rank]), rank, store=mine, num_ranks_here=2)

    @property
    def workers(self) -> list[Worker]:
        return self._workers


def test_ranks_with_their_own_files_compute_the_same(
    hub: SmallHub, config: EngineConfig, contents: dict[str, bytes], tmp_path: Path
) -> None:
    """And their weights have the same digest, once the nodes' samples are put together."""
    alone = LocalExecutor(make_config(model=str(tmp_path / "published")))
    of_folder = alone.start()
    expected = run(alone)
    alone.shutdown()
    named = make_config(model=NAME, pipeline_parallel_size=2, download_dir=str(config.download_dir))
    executor = OnTwoNodes(pinned(named))
    try:
        executor.start()
        assert run(executor) == expected
        whole = whole_sample([worker.sample for worker in executor.workers], ["first", "second"])
        for worker in executor.workers:
            assert worker.arithmetic["weights"] != of_folder.arithmetic["weights"]
            worker.initialize_cache(32, 0, whole.digest)
            assert worker.arithmetic == of_folder.arithmetic
    finally:
        executor.shutdown()
    assert [
        {path.name for path in tmp_path.glob(f"node {stage}/*/snapshots/*/*.safetensors")} for stage in range(2)
    ] == [*OF_STAGE.values()]


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(InvalidConfig, match="has no weight_map"):
        STAGES[0].weight_files(tmp_path)
