"""One rank with the demo checkpoint: the contract of a step, and what a worker says of itself."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ops
from engine.config import DEFAULT_CPU_CACHE_BYTES, EngineConfig
from engine.errors import InvalidConfig
from engine.outputs import SamplerOutput
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.trial_steps import decode_request, prefill_request
from engine.worker.model import check_cache_dtype
from engine.worker.model_runner import MAX_LOGITS_ROWS
from engine.worker.worker import Worker
from ops import cpu
from tests.engine.worker.steps import Part, generate, ints, make_step, pairs

MODEL = str(Path(__file__).parents[3] / "configs" / "demo")
PROMPTS = [list(range(40, 77)), [5, 6, 7], list(range(300, 316))]


def make_config(**changes: object) -> EngineConfig:
    return EngineConfig.create(model=MODEL, dtype="float32", device="cpu", ops_backend="reference", **changes)


@pytest.fixture(scope="module")
def loaded() -> Worker:
    return Worker(make_config(swap_space=0.01), num_ranks_here=2)


@pytest.fixture
def worker(loaded: Worker) -> Worker:
    """With an empty cache of 32 blocks."""
    loaded.initialize_cache(32, 32)
    return loaded


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def execute(worker: Worker, request: ExecuteModelRequest) -> SamplerOutput:
    output = worker.execute(request)
    assert output is not None
    return output


def test_chunks_and_neighbours_change_no_token(worker: Worker) -> None:
    together = generate(lambda request: execute(worker, request), PROMPTS, 4)
    in_chunks = generate(lambda request: execute(worker, request), PROMPTS, 4, chunk=9)
    alone = [generate(lambda request: execute(worker, request), [prompt], 4)[0] for prompt in PROMPTS]
    assert together == in_chunks == alone
    assert len(set(map(tuple, together))) == 3


def test_output_is_in_numpy_with_the_time_it_took(worker: Worker) -> None:
    output = execute(worker, make_step(3, [Part(PROMPTS[0], 0, [1, 2, 3])], epoch=2))
    assert (output.epoch, output.step) == (2, 3)
    assert (output.token_ids.dtype, output.token_ids.shape) == (np.int32, (1,))
    assert output.is_finite.tolist() == [True]
    assert (output.logprobs.shape, output.top_ids.shape) == ((0,), (0, 0))
    assert output.execute_ns.shape == (1,)
    assert output.execute_ns[0] > 0


def test_step_without_sampled_rows_and_step_without_rows(worker: Worker) -> None:
    prefill = execute(worker, make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3], num_samples=0)]))
    moves = execute(worker, make_step(1, [], blocks_to_copy=pairs((1, 4), (2, 5), (3, 6))))
    assert prefill.token_ids.shape == moves.token_ids.shape == (0,)
    last = Part([*PROMPTS[0], 9], len(PROMPTS[0]), [1, 2, 3])
    copied = Part(last.token_ids, last.start, [4, 5, 6])
    first, second = execute(worker, make_step(2, [last, copied])).token_ids.tolist()
    assert first == second


def test_moves_come_before_the_step_reads_its_blocks(worker: Worker) -> None:
    """A prompt is computed, swapped out, overwritten, and back in other blocks within the step that
    goes on with it.
    """
    tokens = generate(lambda request: execute(worker, request), PROMPTS[:1], 2)[0]
    execute(worker, make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
    swap_out = pairs((1, 20), (2, 21), (3, 22))
    execute(worker, make_step(1, [Part([7] * 40, 0, [1, 2, 3])], blocks_to_swap_out=swap_out))
    part = Part([*PROMPTS[0], tokens[0]], len(PROMPTS[0]), [9, 8, 7])
    swap_in = pairs((20, 9), (21, 8), (22, 7))
    assert execute(worker, make_step(2, [part], blocks_to_swap_in=swap_in)).token_ids.tolist() == [tokens[1]]


def test_carried_rows_are_the_tokens_of_the_step_before(worker: Worker) -> None:
    prompts = PROMPTS[:2]
    blocks = [[1, 2, 3], [4]]
    prefill = [Part(prompt, 0, table) for prompt, table in zip(prompts, blocks, strict=True)]
    tokens = execute(worker, make_step(0, prefill)).token_ids.tolist()
    decode = [
        Part([*prompt, token], len(prompt), table) for prompt, token, table in zip(prompts, tokens, blocks, strict=True)
    ]
    told = execute(worker, make_step(1, decode)).token_ids.tolist()
    execute(worker, make_step(2, prefill))
    swapped = make_step(3, decode[::-1], input_ids=ints(0, 0), carried_rows=pairs((0, 1), (1, 0)))
    assert execute(worker, swapped).token_ids.tolist() == told[::-1]
    assert swapped.input_ids.tolist() == [0, 0], "the request is not the worker's to change"


def test_carried_rows_of_a_step_long_past(worker: Worker) -> None:
    request = make_step(9, [Part([1], 0, [1])], carried_step=3, carried_rows=pairs((0, 0)))
    with pytest.raises(ValueError, match="step 9 carries rows of step 3"):
        worker.execute(request)


def test_more_sampled_rows_than_are_taken_at_once(worker: Worker) -> None:
    num_rows = MAX_LOGITS_ROWS + 40
    prompt = [3 + index % 200 for index in range(num_rows)]
    part = Part(prompt, 0, list(range(1, 20)))
    targets = SamplingColumns.of_plain_rows(
        num_rows,
        has_target=np.ones(num_rows, np.bool_),
        target_ids=np.array([*prompt[1:], 0], np.int32),
        logprob_counts=np.full(num_rows, 3, np.int32),
    )
    rows = np.arange(num_rows, dtype=np.int32)
    output = execute(worker, make_step(0, [part], sampled_rows=rows, sampling=targets))
    assert output.token_ids.tolist() == [*prompt[1:], 0]
    assert output.top_ids.shape == (num_rows, 2)
    assert (np.diff(output.top_logprobs, axis=1) <= 0).all()
    best = execute(worker, make_step(1, [part], sampled_rows=rows[-45:], sampling=SamplingColumns.of_plain_rows(45)))
    assert best.token_ids.tolist() == output.top_ids[-45:, 0].tolist()


def test_the_largest_step_runs_in_one_block(worker: Worker) -> None:
    request = prefill_request(num_tokens=70, max_num_seqs=9, max_model_len=32)
    assert request.context_lens.tolist() == [32, 32, 6]
    assert execute(worker, request).is_finite.tolist() == [True] * 9
    request = decode_request(max_num_seqs=9, max_model_len=70)
    assert (request.context_lens.tolist(), request.positions.tolist()) == ([70] * 9, [69] * 9)
    assert execute(worker, request).is_finite.tolist() == [True] * 9


def test_blocks_by_memory(loaded: Worker) -> None:
    block_bytes = 2 * 4 * 2 * 16 * 64 * 4
    assert loaded.determine_num_available_blocks() == (
        DEFAULT_CPU_CACHE_BYTES // block_bytes,
        int(0.01 * (1 << 30)) // block_bytes,
    )


def test_blocks_hold_the_longest_sequence_at_least(loaded: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.config.DEFAULT_CPU_CACHE_BYTES", 1)
    assert loaded.determine_num_available_blocks()[0] == 2048 // 16 + 1


def test_blocks_by_configuration() -> None:
    block_bytes = 2 * 4 * 2 * 16 * 64 * 4
    by_bytes = Worker(make_config(kv_cache_memory_bytes=10 * block_bytes + 1, swap_space=0))
    assert by_bytes.determine_num_available_blocks() == (10, 0)
    assert by_bytes.initialize_cache(10, 0) == 0.0
    assert Worker(make_config(num_gpu_blocks_override=7)).determine_num_available_blocks()[0] == 7
    with pytest.raises(InvalidConfig, match="two blocks take"):
        Worker(make_config(kv_cache_memory_bytes=block_bytes)).determine_num_available_blocks()


def test_swapping_is_timed(loaded: Worker) -> None:
    assert loaded.initialize_cache(32, 32) > 0


def test_report_names_device_dtype_backend_exactness_and_threads(loaded: Worker) -> None:
    num_threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert loaded.report.startswith("cpu, float32, layers 0-3, ops backend reference (not exact")
    assert f", {num_threads} thread" in loaded.report


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))
def test_a_worker_says_whether_it_uses_tapes() -> None:
    def report(**changes: object) -> str:
        return Worker(EngineConfig.create(model=MODEL, device="cpu", **changes)).report

    assert ", tapes for decode steps, " in report()
    assert ", no tapes (enforce_eager), " in report(enforce_eager=True)
    assert ", no tapes (the reference backend cannot be captured), " in report(ops_backend="reference")


@pytest.mark.gpu
def test_a_worker_on_a_gpu_says_whether_it_uses_graphs_and_leaves_them_room() -> None:
    num_blocks = {}
    for enforce_eager, said in ((False, "CUDA graphs for decode steps"), (True, "no CUDA graphs (enforce_eager)")):
        worker = Worker(EngineConfig.create(model=MODEL, device="cuda", enforce_eager=enforce_eager))
        assert said in worker.report
        num_blocks[enforce_eager] = worker.determine_num_available_blocks()[0]
    assert 0 < num_blocks[False] < num_blocks[True]


@pytest.mark.gpu
def test_a_worker_that_meets_others_again_has_room_for_the_cache_it_has() -> None:
    worker = Worker(EngineConfig.create(model=MODEL, device="cuda"))
    num_blocks = worker.determine_num_available_blocks()
    worker.initialize_cache(*num_blocks)
    worker.rejoin(None, "127.0.0.1")
    assert worker.determine_num_available_blocks() == num_blocks


def test_threads_are_the_cores_divided_by_the_ranks() -> None:
    Worker(make_config(), num_ranks_here=64)
    assert torch.get_num_threads() == 1


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


def test_dummy_weights_are_a_function_of_the_seed() -> None:
    columns = SamplingColumns.of_plain_rows(1, logprob_counts=ints(1))
    step = make_step(0, [Part(list(range(20)), 0, [1, 2])], sampling=columns)
    logprobs = []
    for seed in (1, 2, 1):
        worker = Worker(make_config(load_format="dummy", seed=seed))
        worker.initialize_cache(4, 0)
        logprobs.append(execute(worker, step).logprobs.tolist())
    assert logprobs[0] == logprobs[2] != logprobs[1]
