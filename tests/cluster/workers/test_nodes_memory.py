"""What does not fit on a node is refused before anything is loaded there."""

import pytest

from cluster.workers.nodes_memory import bytes_per_block, check_nodes
from engine.errors import InvalidConfig
from tests.cluster.workers.ranks import make_config, started

MUCH = "900GiB"
CHANGES = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": MUCH}


@pytest.mark.usefixtures("cluster")
def test_workers_are_not_loaded_where_they_do_not_fit() -> None:
    config = make_config(tensor_parallel_size=2, **CHANGES)
    refusal = r"2 rank\(s\) .* together 1800 GiB, and node \S+ has"
    with pytest.raises(InvalidConfig, match=refusal), started(config):
        pass


def test_each_node_must_hold_the_ranks_that_are_there() -> None:
    config = make_config(tensor_parallel_size=4, num_gpu_blocks_override=None, kv_cache_memory_bytes="1GiB")
    gib = 1 << 30
    check_nodes(config, ["a", "a", "a", "b"], [4 * gib, 4 * gib, 4 * gib, 2 * gib])
    with pytest.raises(InvalidConfig, match="node b has 512 MiB"):
        check_nodes(config, ["a", "a", "a", "b"], [4 * gib, 4 * gib, 4 * gib, gib // 2])


@pytest.mark.parametrize("sizes", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_a_block_of_cache_has_as_many_bytes_on_however_many_ranks(sizes: dict[str, int]) -> None:
    one = bytes_per_block(make_config())
    assert one > 0 and bytes_per_block(make_config(**sizes)) == one
