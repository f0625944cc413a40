"""A tiny model on the Triton kernels: one answer for each prompt, to the bit, and no step that
waits for its device.
"""

from typing import Any

import numpy as np
import pytest
import torch

from engine.sampling_columns import SamplingColumns
from engine.worker.device.cuda import CudaCapture
from ops import kernels
from tests.engine.worker.recompute import Recompute
from tests.engine.worker.round_trips import refusing_round_trips
from tests.engine.worker.steps import Part, floats, ints, make_step, pairs
from tests.engine.worker.tiny import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Shape,
    decode_carrying,
    execute_on,
    generate,
    make_runner,
)
from tests.ops.kernels.where import DEVICE, IS_INTERPRETED, MARKS, SLOW, slow

pytestmark = MARKS
PROMPTS = [[7 + 3 * k for k in range(19)], [5, 6, 7], [200], list(range(40, 56))]
SHAPES = [
    Shape(64, torch.bfloat16, torch.bfloat16),
    pytest.param(Shape(128, torch.bfloat16, torch.float8_e4m3fn, num_experts=4, quantization="int4"), marks=SLOW),
]
if not IS_INTERPRETED:
    SHAPES += [
        Shape(128, torch.bfloat16, torch.float8_e4m3fn),
        Shape(64, torch.bfloat16, torch.bfloat16, num_experts=4, quantization="int4"),
        Shape(64, torch.bfloat16, torch.float8_e4m3fn),
        Shape(128, torch.bfloat16, torch.bfloat16),
        Shape(64, torch.float16, torch.float16),
        Shape(64, torch.bfloat16, torch.bfloat16, num_experts=4),
        Shape(64, torch.bfloat16, torch.bfloat16, num_experts=4, quantization="fp8"),
    ]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@shapes
def test_chunks_and_neighbours_change_no_bit(shape: Shape) -> None:
    execute = execute_on(make_runner(kernels, DEVICE, shape))
    prompts = PROMPTS[: 2 if IS_INTERPRETED else 4]
    whole = generate(execute, prompts, 2)
    assert generate(execute, prompts[:1], 2) == whole[:1], "alone"
    assert len({line[0] for line in whole}) == len(prompts)
    assert generate(execute, prompts, 2, chunk=8) == whole


@slow  # else, on the CPU's kernels: test_decode_graphs, test_mixed_graphs
@shapes
def test_graphs_change_no_bit(shape: Shape) -> None:
    runner = make_runner(kernels, DEVICE, shape)
    execute = execute_on(runner)
    whole = generate(execute, PROMPTS, 3)
    capture = Recompute() if IS_INTERPRETED else CudaCapture()
    runner.use_graphs(capture, max_num_seqs=6, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    assert decode_carrying(runner, PROMPTS, 3) == whole
    assert runner._layers.graphs is not None and runner._layers.mixed_graphs is not None
    assert runner._layers.graphs.num_captured == 2  # 4 and 6 rows
    assert runner._layers.mixed_graphs.num_captured == 1  # 48 rows
    assert generate(execute, PROMPTS[:3], 2, chunk=8) == [line[:2] for line in whole[:3]]
    assert runner._layers.mixed_graphs.num_captured == 2  # 16 rows: chunks, and tokens beside them


OTHERS = [
    pytest.param(Shape(64, torch.float16, torch.float16), marks=SLOW),
    pytest.param(Shape(64, torch.bfloat16, torch.bfloat16, quantization="int8"), marks=SLOW),
    pytest.param(Shape(64, torch.bfloat16, torch.bfloat16, quantization="fp8"), marks=SLOW),
]


@pytest.mark.parametrize("shape", OTHERS, ids=str)
def test_chunks_and_neighbours_change_no_bit_of_other_weights(shape: Shape) -> None:
    execute = execute_on(make_runner(kernels, DEVICE, shape))
    whole = generate(execute, PROMPTS[:2], 2)
    assert whole[0][0] != whole[1][0]
    assert generate(execute, PROMPTS[:1], 2, chunk=8) == whole[:1]


@pytest.mark.skipif(IS_INTERPRETED, reason="the CPU's kernels do as much in test_decode_graphs, in seconds")
def test_every_batch_size_has_the_bits_it_has_without_graphs() -> None:
    runner = make_runner(kernels, DEVICE, SHAPES[0])
    prompts = [[3 + 7 * index + k for k in range(1 + index)] for index in range(17)]
    expected = [decode_carrying(runner, prompts[:count], 8) for count in range(1, 18)]
    runner.use_graphs(CudaCapture(), max_num_seqs=17, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=256)
    assert [decode_carrying(runner, prompts[:count], 8) for count in range(1, 18)] == expected
    assert runner._layers.graphs is not None
    assert runner._layers.graphs.num_captured == 6  # 1, 2, 4, 8, 16 and 17 rows


def hard_step(step: int) -> Any:
    """Four rows with all that can be asked of a row, a prompt's last token carried from the step
    before.
    """
    parts = [Part([5, 6, 7, 0], 3, [1]), Part([9] * 20, 0, [2, 3], num_samples=3)]
    no_odd_token = np.full(-(-VOCAB_SIZE // 32), 0x55555555, np.int32)
    columns = SamplingColumns.of_plain_rows(
        4,
        temperature=floats(0, 1, 0.5, 1),
        top_k=ints(0, 20, 0, 0),
        top_p=floats(1, 1, 0.8, 1),
        min_p=floats(0, 0.01, 0, 0),
        position=ints(4, 20, 20, 20),
        choice=ints(0, 0, 1, 0),
        has_target=np.array([False, False, False, True]),
        target_ids=ints(0, 0, 0, 9),
        presence_penalty=floats(0.5, 0, 0, 0),
        repetition_penalty=floats(1.2, 1, 1, 1),
        logprob_counts=ints(3, 0, 1, 2),
        history_num_prompt=ints(2, 0, 0, 0),
        mask_starts=ints(0, len(no_odd_token), *[len(no_odd_token)] * 3),
        mask_words=no_odd_token,
        bias_starts=ints(0, 0, 1, 1, 1),
        bias_ids=ints(8),
        bias_values=floats(-float("inf")),
        ban_starts=ints(0, 0, 2, 2, 2),
        ban_last_ids=ints(9, 8),
        ban_ids=ints(7, 6),
        allowed_starts=ints(0, 0, 0, 2, 2),
        allowed_ids=ints(11, 12),
    )
    return make_step(step, parts, sampling=columns, carried_rows=pairs((0, 0)), blocks_to_copy=pairs((4, 5)))


def test_a_round_trip_is_noticed() -> None:
    values = torch.ones(3, device=DEVICE)
    for wait in (lambda: bool(values.all()), lambda: values.nonzero(), lambda: values[values > 0]):
        with refusing_round_trips(DEVICE), pytest.raises((AssertionError, RuntimeError)):
            wait()


@slow  # else on a GPU that is not there: tests/engine/worker/device/test_fake_gpu
@pytest.mark.parametrize("shape", SHAPES[:2], ids=["dense", "experts"])
def test_no_step_waits_for_the_device(shape: Shape) -> None:
    """Once its kernels have been compiled: a mixed step, and a decode step as it would be
    captured.
    """
    runner = make_runner(kernels, DEVICE, shape)
    first = make_step(0, [Part([5, 6, 7], 0, [1])])
    decode = make_step(2, [Part([5, 6, 7, 8], 3, [1]), Part([9, 9], 1, [2])])
    with torch.inference_mode():
        expected = [runner.launch(step).result() for step in (first, hard_step(1), decode)]
        with refusing_round_trips(DEVICE):
            pending = [runner.launch(step) for step in (first, hard_step(1), decode)]
        outputs = [step.result() for step in pending]
    for output, other in zip(outputs, expected, strict=True):
        assert output is not None
        assert other is not None
        assert output.token_ids.tolist() == other.token_ids.tolist()
        assert output.top_logprobs.tobytes() == other.top_logprobs.tobytes()
