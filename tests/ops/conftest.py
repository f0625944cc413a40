"""Every test here runs on each backend in BACKENDS, with memory that nobody has written to filled
with NaN.

With TRITON_INTERPRET=1 that is the Triton backend alone, interpreted (`tests.ops.test_interpreted`
runs such a process).
"""

import importlib
import os
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch.utils import deterministic

import ops as backends
from ops.interface import Ops

BACKENDS = [("reference", "cpu"), ("cpu", "cpu")]
if torch.cuda.is_available():
    BACKENDS += [pytest.param((name, "cuda"), marks=pytest.mark.gpu) for name in ("reference", "triton")]
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# What takes the interpreter minutes, and of several cases that go the same ways through the kernels
# all but some. Published formats have tests in engine/worker/kernels, too.
SLOW = (
    "more_decode_rows",
    "chunks_of_any_size",
    "test_published",
    "test_every_product_is_of_rounded_rows_with_what_is_stored[triton-cpu-33-",
    "test_experts_are_those_of_what_is_stored[triton-cpu-int8]",
    "test_one_nan_or_infinity_is_found_wherever_it_is[4101]",
    "test_experts_have_the_same_sum_however_many_ranks_share_them[triton-cpu-2]",
    "test_one_kernel_gives_the_bits_of_two[64-",
    "test_one_kernel_gives_the_bits_of_two[65-torch.bfloat16-torch.bfloat16-128-",
    "test_decode_rows_chunks_and_prompts_together[torch.bfloat16-torch.bfloat16-7-1-128]",
    "test_decode_rows_chunks_and_prompts_together[torch.bfloat16-torch.float8_e4m3fn-14-2-64]",
    "test_decode_rows_chunks_and_prompts_together[torch.float16-torch.float16-3-3-32]",
    "test_decode_and_prefill_share_their_arithmetic[torch.bfloat16-torch.bfloat16-",
    "test_a_sequence_knows_nothing_of_the_others[torch.bfloat16-torch.bfloat16-",
    "test_splits_are_folded_to_the_same_bits_by_the_last_that_is_done[context_lens0-2]",
    "test_the_tokens_are_the_references[1]",
    "test_the_tokens_are_the_references[63]",
    "test_the_tokens_are_the_references[64]",
    "test_the_tokens_are_the_references[300]",
    "test_against_float64[triton-cpu-0-1]",
    "test_against_float64[triton-cpu-0-1000]",
    "test_against_float64[triton-cpu-1-1000]",
    "test_against_float64[triton-cpu-20-1000]",
    "test_rows_get_what_their_adapter_adds[triton-cpu-97-sizes1-",
    "test_neighbours_change_no_bit[triton-cpu-200]",
    *(f"test_shards_are_quantized_as_the_whole_is[triton-cpu-{case}" for case in ("2-12", "2-64", "2-448", "4", "8")),
    "test_shards_are_encoded_as_the_whole_is[triton-cpu-64-",
    "test_shards_are_encoded_as_the_whole_is[triton-cpu-7-4]",
    "test_ranks_that_add_as_a_tree_agree_with_one[7-",
    "test_ranks_that_add_as_a_tree_agree_with_one[64-8-",
    "test_ranks_add_as_a_tree[4-",
)
ALL_TYPES = "test_decode_rows_chunks_and_prompts_together"  # of attention, which computes float32 in another way
if IS_INTERPRETED:
    importlib.import_module("tests.ops.kernels.interpreter")
    BACKENDS = [("triton", "cpu")]


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Interpreted, what is slow is `long`, and so are all types of numbers but bfloat16."""
    if IS_INTERPRETED:
        for item in items:
            params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            is_other = params.get("dtype", torch.bfloat16) != torch.bfloat16 and ALL_TYPES not in item.nodeid
            if is_other or any(name in item.nodeid for name in SLOW):
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=BACKENDS, ids=lambda param: "-".join(param))
def backend(request: pytest.FixtureRequest) -> tuple[Ops, torch.device]:
    name, device = request.param
    if IS_INTERPRETED:
        return cast(Ops, importlib.import_module("ops.kernels")), torch.device(device)
    if (reason := backends.unavailable_reason(name, torch.device(device))) is not None:
        pytest.skip(reason)
    if name == "cpu" and request.node.callspec.params.get("dtype") == torch.float16:
        pytest.skip("the cpu backend refuses float16")
    return backends.select(name, torch.device(device)), torch.device(device)


@pytest.fixture
def ops(backend: tuple[Ops, torch.device]) -> Ops:
    return backend[0]


@pytest.fixture
def device(backend: tuple[Ops, torch.device]) -> torch.device:
    return backend[1]


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    """torch.empty gives NaN (or the largest integer); random numbers are the same each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    with torch.inference_mode():
        yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
