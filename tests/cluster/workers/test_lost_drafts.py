"""Workers that are lost while a step checks drafts: the streams go on with the same tokens."""

import os
import signal
from concurrent.futures import Future

import pytest

from cluster.workers.ray_executor import RayExecutor
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.local_executor import LocalExecutor
from tests.cluster.workers.ranks import make_config
from tests.cluster.workers.test_ray_executor import engine_on
from tests.engine.exactness.test_demo_exactness import SPECULATION
from tests.engine.exactness.test_drafts import requests
from tests.engine.support.demo import answers, every_bit

pytestmark = pytest.mark.usefixtures("cluster")


def test_streams_go_on_whichever_stage_is_lost_while_it_checks_drafts() -> None:
    exact = {"ops_backend": "cpu", "num_gpu_blocks_override": 400}
    with engine_on(LocalExecutor(make_config(**exact)), make_config(**exact)) as engine:
        expected = [every_bit(answer) for answer in answers(engine, requests(40))]
    config = make_config(**exact, **SPECULATION, pipeline_parallel_size=2)
    executor = RayExecutor(config)
    with engine_on(executor, config) as engine:
        submit, num_checking, lost = executor.submit, 0, iter((1, 0))

        def submit_with_faults(request: ExecuteModelRequest) -> Future[SamplerOutput]:
            """At every sixth step that checks drafts, until each stage was lost."""
            nonlocal num_checking
            future = submit(request)
            num_checking += len(request.sampled_rows) > len(request.context_lens)
            if num_checking == 6 and (rank := next(lost, None)) is not None:
                num_checking = 0
                os.kill(executor.worker_pids[rank], signal.SIGKILL)
            return future

        executor.submit = submit_with_faults  # type: ignore[method-assign]
        assert [every_bit(answer) for answer in answers(engine, requests(40))] == expected
        assert engine.stats().num_recoveries == 2
        assert engine.recorder.measures.copy().drafts.num_accepted > 50
