import pytest

from parallel.mesh import Mesh, stage_layers


def test_the_grid_of_three_stages_by_two() -> None:
    mesh = Mesh(tp_size=2, pp_size=3)
    assert mesh.size == 6
    assert [mesh.coordinates(rank) for rank in range(6)] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert list(mesh.tp_ranks(3)) == [2, 3]
    assert list(mesh.pp_ranks(3)) == [1, 3, 5]


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize("pp_size", [1, 3, 4])
def test_a_rank_is_where_its_groups_say(tp_size: int, pp_size: int) -> None:
    mesh = Mesh(tp_size, pp_size)
    for rank in range(mesh.size):
        pp_rank, tp_rank = mesh.coordinates(rank)
        assert mesh.tp_ranks(rank)[tp_rank] == rank
        assert mesh.pp_ranks(rank)[pp_rank] == rank


@pytest.mark.parametrize(
    ("num_layers", "pp_size", "head_layers", "counts"),
    [
        (4, 1, 0.5, [4]),
        (4, 4, 0.5, [1, 1, 1, 1]),
        (24, 5, 0.0, [5, 5, 5, 4, 5]),
        (7, 4, 0.5, [2, 2, 2, 1]),
        (24, 2, 6.1, [15, 9]),
        (28, 2, 0.8, [14, 14]),
        (28, 4, 1.2, [8, 7, 7, 6]),
        (5, 2, 9.0, [4, 1]),
        (3, 3, 9.0, [1, 1, 1]),
    ],
)
def test_stages_share_the_layers_and_the_head_counts_for_the_last(
    num_layers: int, pp_size: int, head_layers: float, counts: list[int]
) -> None:
    stages = [stage_layers(num_layers, rank, pp_size, head_layers) for rank in range(pp_size)]
    assert [len(stage) for stage in stages] == counts
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
