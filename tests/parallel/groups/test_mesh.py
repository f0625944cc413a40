from parallel.groups.mesh import Mesh


def test_the_grid_of_three_stages_by_two() -> None:
    mesh = Mesh(tp_size=2, pp_size=3)
    assert mesh.size == 6
    assert [mesh.coordinates(rank) for rank in range(6)] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
