"""What a rank loads, and what it refuses to."""

import json
from pathlib import Path

import pytest
import torch

import ops
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.sampling_columns import SamplingColumns
from engine.worker.model import check_cache_dtype, check_published_float8
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import MODEL, execute, make_config
from tests.engine.worker.steps import Part, ints, make_step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": str(Path(MODEL) / "nowhere")}, "config.json does not exist"),
        ({"device": "cuda", "ops_backend": "auto"}, "no CUDA device"),
        ({"ops_backend": "triton"}, "triton"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype=fp8_e4m3 is for GPUs"),
        ({"max_model_len": 1 << 20}, "max_model_len=1048576"),
    ],
)
def test_refusals_are_sentences(changes: dict[str, object], message: str) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InvalidConfig, match=message):
        Worker(EngineConfig.create(**({"model": MODEL, "device": "cpu"} | changes)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_heads_of_a_size_that_attention_does_not_take_are_refused(tmp_path: Path, backend: str) -> None:
    if (reason := ops.unavailable_reason(backend, torch.device("cpu"))) is not None:
        pytest.skip(reason)
    config = json.loads((Path(MODEL) / "config.json").read_text()) | {"head_dim": 48}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def start() -> Worker:
        return Worker(
            EngineConfig.create(
                model=str(tmp_path), device="cpu", ops_backend=backend, load_format="dummy", swap_space=0
            )
        )

    if backend == "reference":
        worker = start()
        worker.initialize_cache(4, 0)
        assert execute(worker, make_step(0, [Part(list(range(20)), 0, [1, 2])])).is_finite.tolist() == [True]
        return
    with pytest.raises(InvalidConfig, match="head_dim=48 is not computed by the cpu backend; ops_backend=reference"):
        start()


def test_a_cache_of_float8_is_refused_on_a_gpu_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("ops.kernels")
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_cache_dtype("auto", kernels, device)
    with pytest.raises(
        InvalidConfig, match=r"kv_cache_dtype=fp8_e4m3 needs a GPU of compute capability 8.9 .* has 8.0"
    ):
        check_cache_dtype("fp8_e4m3", kernels, device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    check_cache_dtype("fp8_e4m3", kernels, device)


def test_float8_weights_need_a_gpu_that_converts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(InvalidConfig, match=r"quantized \(fp8 float8\), which needs a GPU of compute capability 8.9"):
        check_published_float8("fp8 float8", device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    check_published_float8("fp8 float8", device)


def test_dummy_weights_are_a_function_of_the_seed() -> None:
    columns = SamplingColumns.of_plain_rows(1, logprob_counts=ints(1))
    step = make_step(0, [Part(list(range(20)), 0, [1, 2])], sampling=columns)
    logprobs = []
    for seed in (1, 2, 1):
        worker = Worker(make_config(load_format="dummy", seed=seed))
        worker.initialize_cache(4, 0)
        logprobs.append(execute(worker, step).logprobs.tolist())
    assert logprobs[0] == logprobs[2] != logprobs[1]
