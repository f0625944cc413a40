"""Graphs by the number of rows that they are for."""

import logging
from collections.abc import Callable

import pytest
import torch

from engine.worker.graphs.graphs import (
    MAX_HISTORY,
    Graphs,
    batch_sizes,
    context_limits,
    history_size,
    mixed_sizes,
    num_graphs,
)


def test_sizes_are_few_and_reach_the_largest_batch() -> None:
    assert batch_sizes(256) == [1, 2, 4, 8, *range(16, 257, 8)]
    assert batch_sizes(11) == [1, 2, 4, 8, 11]
    assert batch_sizes(8) == [1, 2, 4, 8]
    # Only the last stage samples, five kinds of rows and 256 rows at once.
    assert (num_graphs(8, 512, 64, samples=False), num_graphs(8, 512, 64, samples=True)) == (4 + 3, 24 + 3)
    of_sampling = num_graphs(1024, 4096, 8192, samples=True) - num_graphs(1024, 4096, 8192, samples=False)
    assert of_sampling == 5 * len(batch_sizes(256))
    assert batch_sizes(3) == [1, 2, 3]
    assert batch_sizes(1) == [1]


def test_histories_have_room_up_to_a_limit() -> None:
    assert history_size(2, 33) == 2 * 48
    assert history_size(256, 32768) == MAX_HISTORY


def test_rows_of_mixed_steps_are_padded_to_tiles_and_end_where_launches_are_hidden() -> None:
    assert mixed_sizes(8192) == mixed_sizes(2048) == [16, 32, 64, *range(128, 2049, 128)]
    assert mixed_sizes(300) == [16, 32, 64, 128, 256, 300]
    assert (mixed_sizes(64), mixed_sizes(7)) == ([16, 32, 64], [7])


def test_context_limits_reach_the_longest_context() -> None:
    assert context_limits(32768) == [512, 4096, 32768]
    assert context_limits(600) == [512, 600]
    assert context_limits(512) == context_limits(512)[-1:] == [512]


def rows(count: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.arange(count)


def test_the_largest_is_captured_first_and_each_once() -> None:
    captured: list[int] = []

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(len(compute()))
        return compute

    graphs = Graphs(capture, before=((8,),))
    for count in (2, 4, 2, 8):
        assert len(graphs.of((count,), rows)()) == count
    assert captured == [8, 2, 4]
    assert graphs.num_captured == 3


def test_all_are_captured_at_once_and_the_log_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "squadron.worker")
    graphs = Graphs(lambda compute: compute, before=((8,),))
    graphs.of((4,), rows)
    graphs.capture_all([(8,), (4,), (2,), (1,)], rows, "rows")
    assert graphs.num_captured == 4
    assert caplog.messages[-1] == "captured 2 of 2 graphs of rows"


def test_what_cannot_be_captured_is_computed_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        raise RuntimeError("no room\nand a trace")

    graphs = Graphs(capture, before=())
    for _ in range(2):
        assert len(graphs.of((3,), rows)()) == 3
    assert graphs.num_captured == 0
    assert caplog.messages == ["there is no graph of 3 rows, such steps are launched as others are: no room"]
