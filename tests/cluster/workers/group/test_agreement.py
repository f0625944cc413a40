"""Ranks that can compute differently: what they agree on, and who is refused."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.workers.group.agreement import agree, common_arithmetic, whole_sample
from cluster.workers.processes.actor import WorkerActor
from engine.checkpoint.fingerprint import Offer, Sample
from engine.errors import InvalidConfig
from engine.worker.local_executor import LocalExecutor
from ops.cpu import build
from tests.cluster.workers.ranks import make_config, run, started

NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
needs_two_levels = pytest.mark.skipif(
    "avx2" not in build.runnable_levels()[1:] or "SQUADRON_CPU_ISA" in os.environ,
    reason="needs AVX2 and a better level",
)


def test_ranks_agree_on_the_best_level_that_all_can() -> None:
    best, good = Offer("cpu", ("avx512_bf16", "avx512", "avx2")), Offer("cpu", ("avx512", "avx2"))
    assert agree([best, best], NODES, None) == "avx512_bf16"
    assert agree([best, good, best], NODES, None) == "avx512"
    assert agree([best, best], NODES, "avx2") == "avx2", "as before, whatever new workers can"


def test_ranks_that_cannot_agree_are_refused_in_a_line() -> None:
    new, old = Offer("cpu", ("avx512_bf16",)), Offer("cpu", ("avx2",))
    with pytest.raises(
        InvalidConfig, match=r"worker 0 on node 10\.0\.0\.1 avx512_bf16; worker 1 on node 10\.0\.0\.2 avx2"
    ):
        agree([new, old], NODES, None)
    with pytest.raises(InvalidConfig, match="where avx512 was used so far"):
        agree([old, old], NODES, "avx512")
    slow = Offer("reference", ("AVX2",), "no C++ compiler")
    with pytest.raises(
        InvalidConfig, match=r"worker 1 on node 10\.0\.0\.2 .* reference .* no C\+\+ compiler; ops_backend=ref"
    ):
        agree([new, slow], NODES, None)
    with pytest.raises(
        InvalidConfig, match=r"weights is a on worker 0, node 10\.0\.0\.1, and b on worker 1, node 10\.0\.0\.2"
    ):
        common_arithmetic([{"weights": "a"}, {"weights": "b"}], NODES)


def test_nodes_have_files_of_the_same_weights() -> None:
    whole = {"a": "1", "b": "2"}
    parts = [Sample("rest", {"a": "1", "b": None}), Sample("rest", {"a": None, "b": "2"})]
    assert whole_sample(parts, NODES) == whole_sample([*parts, Sample("rest", whole)], NODES) == Sample("rest", whole)
    with pytest.raises(InvalidConfig, match=r"b on worker 1, node 10\.0\.0\.2, is not the one that another node has"):
        whole_sample([Sample("rest", whole), Sample("rest", {"a": None, "b": "3"})], NODES)
    with pytest.raises(InvalidConfig, match="b is on no worker's node"):
        whole_sample(parts[:1], NODES)


class MixedActor(WorkerActor):
    """The first of them to start is on a machine that can do less."""

    def __init__(self) -> None:
        with suppress(FileExistsError):
            os.close(os.open(f"{os.environ['SQUADRON_TEST_FOLDER']}/taken", os.O_CREAT | os.O_EXCL))
            os.environ["SQUADRON_CPU_ISA"] = "avx2"
        super().__init__()


@needs_two_levels
@pytest.mark.usefixtures("cluster")
def test_ranks_of_mixed_levels_compute_at_the_lower_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_config(ops_backend="auto", dtype="bfloat16")
    own = LocalExecutor(plain)
    ours = own.start().arithmetic["ops"]
    own.shutdown()
    assert "avx2" not in ours

    class Mixed(MixedActor):
        def __init__(self) -> None:
            os.environ["SQUADRON_TEST_FOLDER"] = folder
            super().__init__()

    folder = str(tmp_path)
    monkeypatch.setattr("cluster.workers.processes.started.WorkerActor", Mixed)
    with started(
        make_config(ops_backend="auto", dtype="bfloat16", tensor_parallel_size=2, num_spare_workers=0)
    ) as executor:
        assert "kernels-avx2-" in executor._group.capacity.arithmetic["ops"]
        mixed = run(executor)
        os.kill(executor.worker_pids[0], 9)
        with pytest.raises(Exception, match="worker"):
            run(executor)
        assert "kernels-avx2-" in executor.restart().arithmetic["ops"], "the one that is new can do more, and does not"
        assert run(executor, epoch=1) == mixed
