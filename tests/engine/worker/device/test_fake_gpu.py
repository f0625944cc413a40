"""Whole steps on a GPU that is not there: nothing in them makes the host wait for it, with graphs
and without; whatever would is noticed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import CacheShape, make_cache
from engine.worker.cache.warm_up import warm_up
from engine.worker.model_runner import ModelRunner
from ops import kernels, quantizing
from ops.interface import Ops
from parallel.decoder import Decoder
from parallel.groups.group import SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.engine.worker.device.fake_gpu import DEVICE, FakeGpu, Waits, fake_gpu, refusing_waits
from tests.engine.worker.kernels.test_steps import hard_step
from tests.engine.worker.steps import Part, floats, ints, make_step, pairs
from tests.engine.worker.tiny import MAX_MODEL_LEN, NUM_BLOCKS, VOCAB_SIZE, Shape, hf_config
from tests.ops.kernels.where import IS_INTERPRETED

pytestmark = pytest.mark.skipif(IS_INTERPRETED, reason="interpreted kernels are launched otherwise")
BF16 = torch.bfloat16
DENSE, EXPERTS = Shape(64, BF16, BF16), Shape(128, BF16, torch.float8_e4m3fn, num_experts=4, quantization="int4")


class _Empty:
    """Weights of a device without memory."""

    def __init__(self, shapes: Any) -> None:
        self._shapes = shapes

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        whole = torch.empty(self._shapes[name], dtype=BF16, device=DEVICE)
        return (whole[rows] if columns is None else whole[rows, columns]).contiguous()

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        return self.read(f"{name}.weight", rows, columns)


def make_runner(ops: Ops, shape: Shape) -> ModelRunner:
    config = read(hf_config(shape.head_dim, VOCAB_SIZE, shape.num_experts))
    ops = ops if shape.quantization is None else quantizing(ops, shape.quantization)
    model = Decoder(config, ops=ops, tp=SingleGroup(), stage=Stage(0, 1, None), dtype=BF16, device=DEVICE)
    model.load(cast(Any, _Empty(config.shapes())))
    cells = CacheShape(model.num_layers, model.num_kv_heads, model.head_dim, shape.cache_dtype)
    return ModelRunner(model, make_cache(cells, NUM_BLOCKS, 4, FakeGpu()), device=FakeGpu(), speaks=True)


def run_steps(runner: ModelRunner) -> None:
    """A prompt, a mixed step with all that a row can ask for and moves of blocks, decode steps
    without more, with penalties, and with their tokens' logprobs.
    """
    parts = [Part([5, 6, 7, 8], 3, [1]), Part([9, 9], 1, [2])]
    decode = make_step(2, parts, carried_rows=pairs((0, 0)), carried_steps=ints(1))
    penalized = SamplingColumns.of_plain_rows(
        2, position=ints(4, 2), history_num_prompt=ints(3, 0), repetition_penalty=floats(1.2, 1)
    )
    with torch.inference_mode(), refusing_waits():
        for step in (
            make_step(0, [Part([5, 6, 7], 0, [1])]),
            hard_step(1),
            decode,
            make_step(3, parts, sampling=penalized),
            make_step(4, parts, sampling=SamplingColumns.of_plain_rows(2, logprob_counts=ints(0, 1))),
        ):
            runner.launch(step)


@pytest.mark.parametrize("compute", [(8, 0), (9, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("shape", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_no_step_waits_for_the_device(shape: Shape, compute: tuple[int, int]) -> None:
    if shape.cache_dtype == torch.float8_e4m3fn and compute < (8, 9):
        pytest.skip("without float8")
    with fake_gpu(compute) as launched:
        runner = make_runner(kernels, shape)
        run_steps(runner)
        runner.use_graphs(FakeGpu().capture(), max_num_seqs=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=200)
        with torch.inference_mode(), refusing_waits():
            runner.capture_graphs()
        assert runner._layers.mixed_graphs is not None and runner._sampler.graphs is not None
        assert runner._layers.mixed_graphs.num_captured == 5  # 16, 32, 64, 128 and 200 rows
        assert runner._sampler.graphs.num_captured == 15  # 1, 2 and 4 rows, five kinds
        run_steps(runner)
    kernels_launched = {kernel for kernel, _ in launched}
    decode = "hopper_decode_kernel" if compute == (9, 0) else "decode_kernel"
    assert {"linear_kernel", "prefill_kernel", decode, "norm_kernel", "draw_kernel"} <= kernels_launched


class _Unawaited:
    """As a `ModelRunner` whose steps nobody waits for."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def launch(self, request: ExecuteModelRequest) -> Any:
        self._runner.launch(request)
        return SimpleNamespace(result=lambda: None)


@pytest.mark.parametrize("compute", [(8, 0), (9, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("shape", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_no_step_waits_for_a_compiler(shape: Shape, compute: tuple[int, int]) -> None:
    """However many rows it has and whatever they ask for: all that it launches, warm-up has
    launched, with constants, types and alignments for which Triton compiles once.
    """
    if shape.cache_dtype == torch.float8_e4m3fn and compute < (8, 9):
        pytest.skip("without float8")
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 200, "max_model_len": MAX_MODEL_LEN}
    with fake_gpu(compute) as launched:
        runner = make_runner(kernels, shape)
        with refusing_waits():
            warm_up(cast(Any, _Unawaited(runner)), **sizes, vocab_size=VOCAB_SIZE)
        warm = set(launched)
        launched.clear()
        run_steps(runner)
        with torch.inference_mode(), refusing_waits():
            for num_rows in range(2, MAX_MODEL_LEN, 13):
                runner.launch(make_step(0, [Part([5] * num_rows, 0, list(range(1, 7))), Part([5, 6], 1, [9])]))
        assert {"move_kernel", "count_kernel", "penalty_kernel", "pack_kernel"} <= {kernel for kernel, _ in launched}
        assert not set(launched) - warm
        runner.use_graphs(FakeGpu().capture(), **sizes)
        with torch.inference_mode(), refusing_waits():
            runner.capture_graphs()
        run_steps(runner)
        assert not set(launched) - warm


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "int": lambda x: int(x.max()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "write by mask": lambda x: x.index_put_((x > 0,), x.new_zeros(())),
    "host's numbers": lambda x: x[torch.tensor([0])],
    "from a list": lambda x: torch.tensor([1, 2], device=x.device),
    "from pageable memory": lambda x: torch.zeros(3).to(x.device, non_blocking=True),
    "blocking upload": lambda x: torch.zeros(3, pin_memory=True).to(x.device),
    "blocking download": lambda x: torch.empty_like(x, device="cpu", pin_memory=True).copy_(x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_waits_is_noticed_in_a_step(wait: Callable[[Tensor], object]) -> None:
    def waiting(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wait(x)
        return kernels.rms_norm(x, weight, eps)

    functions = {name: getattr(kernels, name) for name in kernels.__all__} | {"rms_norm": waiting}
    with fake_gpu():
        runner = make_runner(cast(Ops, SimpleNamespace(**functions)), DENSE)
        with pytest.raises(Waits):
            run_steps(runner)


def test_what_does_not_wait_is_let_through() -> None:
    with fake_gpu(), refusing_waits():
        x = torch.zeros(3, device=DEVICE)
        assert torch.zeros(3, pin_memory=True)[1:].to(DEVICE, non_blocking=True).shape == (2,)
        assert torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True).device.type == "cpu"
        x[0] = 1.0
        assert torch.ones(2).sum().item() == 2, "host tensors are real"
        with pytest.raises(Waits):
            FakeGpu().record_event().synchronize()
