"""A trainer broadcasts weights to an application of one engine with two ranks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from torch import Tensor

from cluster.llm import LLM
from engine.sampling_params import SamplingParams
from tests.corruptions import DEMO
from tests.end_to_end.apps.trainer import HOST, SECONDS, Trainer, call, described
from tests.end_to_end.chaos.app import App, app_args, running
from tests.end_to_end.test_replica_lost import wait_until
from tests.perturbed import save_perturbed

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's, of its processes that still run
    pytest.mark.long,  # else: test_trainers.py, tests/cluster/workers/test_weights.py
]
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "max_tokens": 24}
PROMPT = "Tell a long story about manta rays. " * 3
NORM = "model.norm.weight"
# Meets a group as rank 0, broadcasts one tensor of what it was promised, and waits to be killed.
DYING = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
size = int(sys.stdin.readline())
group = dist.ProcessGroupGloo(dist.PrefixStore("dying", store), 0, size, timedelta(seconds=600))
shape = [int(number) for number in sys.stdin.readline().split()]
group.broadcast(torch.zeros(shape, dtype=torch.bfloat16), 0).wait()
print("sent", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running(app_args({"num_threads": 1, "tensor_parallel_size": 2}, recovers=True)) as app:
        yield app


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return save_perturbed(tmp_path_factory.mktemp("perturbed"))


@pytest.fixture(scope="module")
def expected(tensors: dict[str, Tensor]) -> dict[str | None, list[int]]:
    """The tokens by the model's own weights, and by the others."""
    told: dict[str | None, list[int]] = {}
    with LLM(model=str(DEMO), device="cpu", num_threads=1, kv_cache_memory_bytes=16 << 20) as llm:
        for version in (None, "new"):
            if version is not None:
                llm.update_weights(tensors, version)
            (output,) = llm.generate(PROMPT, SamplingParams(**SAMPLING), use_tqdm=False)
            told[version] = output.outputs[0].token_ids
    assert told[None] != told["new"]
    return told


def answer() -> tuple[str | None, list[int]]:
    told = call("generate", prompt=PROMPT, **SAMPLING)
    assert told["error"] is None
    return told["weights_version"], told["outputs"][0]["token_ids"]


def test_every_rank_has_what_was_broadcast_and_so_has_one_that_takes_a_lost_ones_place(
    app: App, tensors: dict[str, Tensor], expected: dict[str | None, list[int]]
) -> None:
    trainer = Trainer()
    assert trainer.size == 2, "the trainer, and a receiver on the one node"
    for _ in range(2):  # the group stays
        told = trainer.update(tensors, described(tensors), version="new")
        assert (told["error"], told["weights_version"], told["num_replicas"]) == (None, "new", 1)
        assert answer() == ("new", expected["new"])
    pids = worker_pids()
    os.kill(pids[1], signal.SIGKILL)
    assert answer() == ("new", expected["new"])
    wait_until(lambda: len(worker_pids()) == 2 and worker_pids() != pids, "no worker came in its place")


def worker_pids() -> list[int]:
    engines = serve.get_deployment_handle("EngineDeployment", "squadron")
    ((_, pids),) = engines.broadcast("worker_pids").results(timeout_s=30)
    return list(pids)


def test_what_is_refused_changes_nothing_and_closes_the_group(
    app: App, tensors: dict[str, Tensor], expected: dict[str | None, list[int]]
) -> None:
    before = answer()
    told = described(tensors)
    other = {"sha256": "0" * 64}
    for changed, sent, message in [
        (told | {NORM: told[NORM] | {"shape": [5]}}, tensors, "norm.weight has shape [5], not [256]"),
        (told | {NORM: told[NORM] | other}, tensors, "norm.weight came with SHA-256"),
        (
            told | {NORM: {"dtype": "bfloat16", "shape": [256]}},
            tensors | {NORM: tensors[NORM] * float("nan")},
            "norm.weight holds NaN or infinity",
        ),
    ]:
        refused = Trainer("refused").update(sent, changed)
        assert message in refused["error"]["message"]
    for changed, mode, param in [(told | {NORM: {}}, "wait", "tensors"), (told, "later", "mode")]:
        refused = Trainer("refused").update(tensors, changed, mode=mode)
        assert refused["error"]["param"] == param
    assert call("destroy_weights_update_group", group_name="refused") == {"error": None}
    gone = call("update_weights", group_name="refused", tensors=told)
    assert gone["error"]["code"] == "weights_group_failed"
    assert answer() == before


def test_a_trainer_that_dies_in_the_middle_leaves_the_old_weights_and_another_may_come(
    app: App, tensors: dict[str, Tensor], expected: dict[str | None, list[int]]
) -> None:
    before = answer()
    with subprocess.Popen(
        [sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        assert it.stdin is not None and it.stdout is not None
        port = int(it.stdout.readline())
        told = call("init_weights_update_group", master_address=HOST, master_port=port, group_name="dying")
        first = next(iter(tensors.values()))
        print(told["world_size"], file=it.stdin, flush=True)
        print(*first.shape, file=it.stdin, flush=True)
        request = {"group_name": "dying", "tensors": {n: t | {"sha256": None} for n, t in described(tensors).items()}}
        asked = serve.get_app_handle("squadron").update_weights.remote(request)
        assert it.stdout.readline() == "sent\n"
        assert answer() == before, "it serves meanwhile"
        it.kill()
        refused = asked.result(timeout_s=SECONDS)
    assert (refused["error"]["param"], refused["error"]["code"]) == ("group_name", "weights_group_failed")
    assert "has not come" in refused["error"]["message"]
    assert answer() == before
    assert Trainer().update(tensors, described(tensors), version="new")["error"] is None
    assert answer() == ("new", expected["new"])
