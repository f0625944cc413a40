import pytest

from parallel.spec.stages import stage_layers


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
