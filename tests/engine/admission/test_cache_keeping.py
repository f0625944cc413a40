"""The folder that a configuration names, and whom it has told of the cache."""

from pathlib import Path

import pytest

from engine.admission.cache_keeping import CacheKeeping
from engine.checkpoint.fingerprint import fingerprint
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Capacity
from engine.kv_events.publisher import make_publisher
from engine.offload.block_files import BlockFiles, Folder, layout_name
from engine.scheduling.block_manager import BlockManager
from tests.engine.support.workloads import DEMO


def test_without_a_configuration_there_is_nothing() -> None:
    keeping = CacheKeeping(EngineConfig.create(model=DEMO))
    keeping.start(Capacity(10, 10))
    assert keeping.known is keeping.changes is None
    keeping.publish(BlockManager(Capacity(10, 10), block_size=16, max_model_len=160, max_num_seqs=4))
    keeping.cleared(Capacity(10, 10))
    keeping.close()


def test_a_folder_needs_host_memory_and_the_prefix_index(tmp_path: Path) -> None:
    config = EngineConfig.create(model=DEMO, kv_offloading_path=str(tmp_path))
    with pytest.raises(InvalidConfig, match="there are 0 host blocks; raise swap_space"):
        CacheKeeping(config).start(Capacity(10, 0))
    with pytest.raises(InvalidConfig, match=r"kv_offloading_path=.* needs enable_prefix_caching"):
        EngineConfig.create(model=DEMO, kv_offloading_path=str(tmp_path), enable_prefix_caching=False)
    keeping = CacheKeeping(config)
    keeping.start(Capacity(10, 8))
    assert keeping.known is not None and keeping.known.contents == set()
    keeping.close()
    keeping.close()


def test_with_other_weights_other_blocks_are_known(tmp_path: Path) -> None:
    old, new = (Capacity(10, 8, arithmetic={"weights": weights}) for weights in ("old", "new"))
    name = layout_name(fingerprint(new.arithmetic), 1, 1)
    BlockFiles(Folder(str(tmp_path)), name, 0).write(bytes(16), b"of the new ones")
    keeping = CacheKeeping(EngineConfig.create(model=DEMO, kv_offloading_path=str(tmp_path)))
    keeping.start(old)
    known = keeping.known
    assert known is not None
    known.add(bytes(15) + b"o")
    keeping.cleared(old)
    assert keeping.known is known, "a worker was replaced"
    keeping.cleared(new)
    assert keeping.known is not None and keeping.known.contents == {bytes(16)}
    keeping.cleared(old)
    assert keeping.known.contents == set(), "nobody has written it"
    keeping.close()


def test_events_that_nobody_wants_are_not_made() -> None:
    for events in ({}, {"enable_kv_cache_events": True, "publisher": "null"}):
        config = EngineConfig.create(model=DEMO, kv_events_config=events)
        assert make_publisher(config.kv_events_config) is None
