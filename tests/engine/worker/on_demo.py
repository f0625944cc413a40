"""A worker of one rank on the demo checkpoint."""

from pathlib import Path

from engine.config import EngineConfig
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.worker import Worker

MODEL = str(Path(__file__).parents[3] / "configs" / "demo")
PROMPTS = [list(range(40, 77)), [5, 6, 7], list(range(300, 316))]


def make_config(**changes: object) -> EngineConfig:
    arguments = {"model": MODEL, "dtype": "float32", "device": "cpu", "ops_backend": "reference", "num_threads": 1}
    return EngineConfig.create(**(arguments | changes))


def execute(worker: Worker, request: ExecuteModelRequest) -> SamplerOutput:
    output = worker.execute(request)
    assert output is not None
    return output
