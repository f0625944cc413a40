"""Cores are divided between the engines and HTTP as their work is."""

import pytest

from cluster.launch import room
from engine.config import EngineConfig
from tests.engine.support.workloads import DEMO

SMALL, LARGE = 6 << 20, 1 << 30  # bytes of weights


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """The line about a machine of so many cores, and the threads of each rank."""

    def line(
        num_cores: int,
        weight_bytes: int,
        *,
        num_engines: int = 1,
        num_gateways: int = 1,
        other_ranks: int = 0,
        **engine: int,
    ):
        monkeypatch.setattr(room, "usable_cores", lambda: num_cores)
        config = EngineConfig.create(model=str(DEMO), device="cpu", **engine)
        numbers = {"num_engines": num_engines, "num_gateways": num_gateways, "other_ranks": other_ranks}
        found = room.divide(config, weight_bytes, **numbers)
        return str(found), found.num_threads

    return line


def test_a_small_model_leaves_a_core_to_http(on) -> None:
    assert on(2, SMALL) == ("2 cores: 1 thread for the engine, 1 left for HTTP", 1)


def test_a_large_model_computes_on_all_cores(on) -> None:
    assert on(2, LARGE) == ("2 cores: the engine computes on all, and shares with HTTP", None)
    assert on(16, LARGE) == ("16 cores: the engine computes on all, and shares with HTTP", None)


def test_http_takes_no_more_cores_than_it_has_processes(on) -> None:
    assert on(16, SMALL) == ("16 cores: 14 threads for the engine, 2 left for HTTP", 14)
    assert on(16, SMALL, num_gateways=3) == ("16 cores: 12 threads for the engine, 4 left for HTTP", 12)


def test_every_rank_has_a_core_first(on) -> None:
    assert on(1, SMALL) == ("1 core: the engine computes on it, and shares with HTTP", None)
    assert on(2, SMALL, tensor_parallel_size=2)[1] is None
    assert on(4, SMALL, num_engines=2) == ("4 cores: 1 thread for each of 2 ranks, 2 left for HTTP", 1)


def test_models_share_the_cores(on) -> None:
    assert on(2, LARGE, other_ranks=1) == ("2 cores: 1 thread for each of 2 ranks, 0 left for HTTP", 1)
    assert on(1, SMALL, other_ranks=2) == ("1 core: 1 thread for each of 3 ranks, 0 left for HTTP", 1)
    assert on(16, LARGE, other_ranks=3)[1] == 4


def test_what_is_configured_is_kept(on) -> None:
    assert on(2, SMALL, num_threads=2) == ("2 cores: 2 threads for the engine, 0 left for HTTP", 2)
    assert on(4, LARGE, num_threads=3) == ("4 cores: 3 threads for the engine, 1 left for HTTP", 3)
