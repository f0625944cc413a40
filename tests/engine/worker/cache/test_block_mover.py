"""Moves of blocks whose swaps come as late as they may: the caches are as if each had been done at
once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

import ops
from engine.step import ExecuteModelRequest
from engine.worker.cache.block_mover import BlockMover
from engine.worker.cache.kv_cache import CacheShape, make_cache
from engine.worker.device.pick import pick_device
from tests.engine.worker.steps import Part, make_step, pairs

CPU = torch.device("cpu")
SHAPE = CacheShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.float32)
NUM_BLOCKS = 12


class LateStream:
    """A `SideStream` whose work is done when the steps wait for it, and not before."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.num_done = 0

    def launch(self, work: Callable[[], None]) -> int:
        self.waiting.append(work)
        return self.num_done + len(self.waiting)

    def wait(self, mark: int) -> None:
        while self.num_done < mark:
            self.waiting.pop(0)()
            self.num_done += 1


class Moved:
    """A cache whose blocks are moved, and written to by steps."""

    def __init__(self, side: LateStream | None, device: torch.device = CPU) -> None:
        backend = ops.select("auto" if device.type == "cuda" else "reference", device)
        picked = pick_device(device.type)
        self.cache = make_cache(SHAPE, NUM_BLOCKS, NUM_BLOCKS, picked)
        self.mover = BlockMover(self.cache, backend, picked, side)

    def step(self, request: ExecuteModelRequest) -> None:
        """Each row writes its step and its slot where its key and value would be."""
        self.mover.move(request)
        for slot in request.slot_mapping.tolist():
            for number, tensor in enumerate(chain(*self.cache.device)):
                tensor[slot // 16, 0, slot % 16] = float(1000 * request.step + slot + number / 8)
            self.cache.token_ids[slot // 16, slot % 16] = 1000 * request.step + slot


def contents(layers: list[tuple[torch.Tensor, torch.Tensor]], blocks: Iterable[int] = range(NUM_BLOCKS)) -> list[float]:
    return torch.stack([tensor[sorted(blocks)] for layer in layers for tensor in layer]).flatten().tolist()


def test_a_swap_in_is_waited_for_by_who_reads_its_blocks() -> None:
    side = LateStream()
    late = Moved(side)
    late.cache.host[0][0][5] = 7.0
    late.step(make_step(1, [Part([7] * 16, 0, [3])], blocks_to_swap_in=pairs((5, 1))))
    late.step(make_step(2, [Part([7] * 16, 0, [4])], blocks_to_swap_in=pairs((6, 2))))
    assert len(side.waiting) == 2, "steps that read elsewhere run beside them"
    late.step(make_step(3, [Part([7] * 17, 16, [1, 3])]))
    assert len(side.waiting) == 1
    assert (late.cache.device[0][0][1] == 7.0).all()
    late.step(make_step(4, [], blocks_to_copy=pairs((2, 4))))
    assert not side.waiting


def test_a_swap_out_is_waited_for_by_who_writes_into_its_blocks() -> None:
    side = LateStream()
    late = Moved(side)
    late.step(make_step(1, [Part([7] * 20, 0, [1, 2])]))
    before = [keys[[1, 2]].clone() for keys, _ in late.cache.device]
    late.step(make_step(2, [Part([7] * 16, 0, [3])], blocks_to_swap_out=pairs((1, 5), (2, 6))))
    assert len(side.waiting) == 1, "a step that writes elsewhere runs beside it"
    late.step(make_step(3, [Part([7], 0, [2])]))
    assert not side.waiting
    for (keys, _), kept in zip(late.cache.host, before, strict=True):
        assert torch.equal(keys[[5, 6]], kept)


def test_a_swap_out_is_waited_for_by_guesses_that_come_into_its_blocks() -> None:
    side = LateStream()
    late = Moved(side)
    late.step(make_step(1, [], blocks_to_swap_out=pairs((1, 5))))
    decode = make_step(2, [Part([7] * 16, 15, [3, 1])])
    late.step(decode)
    assert len(side.waiting) == 1, "its own token is in block 3"
    late.step(replace(decode, step=3, drafting=np.array([[0, 15, 1, 0, 1, 4]], np.int32)))
    assert not side.waiting


def test_a_copy_into_a_block_that_leaves_waits_too() -> None:
    side = LateStream()
    late = Moved(side)
    late.step(make_step(1, [Part([7] * 32, 0, [1, 2])]))
    late.step(make_step(2, [], blocks_to_swap_out=pairs((1, 5)), blocks_to_copy=pairs((2, 1))))
    assert not side.waiting
    keys_on_device, keys_on_host = late.cache.device[0][0], late.cache.host[0][0]
    assert torch.equal(keys_on_device[1], keys_on_device[2])
    assert not torch.equal(keys_on_host[5], keys_on_device[1])


def test_late_swaps_leave_the_caches_as_swaps_at_once() -> None:
    """Random steps: swaps out and in, copies, writes, of any blocks at all. What no step reads may
    come later.
    """
    side = LateStream()
    late, at_once = Moved(side), Moved(None)
    num_deferred = 0
    for request in random_steps(300):
        late.step(request)
        at_once.step(request)
        used = {*request.block_ids.tolist(), *request.blocks_to_copy.flatten().tolist()}
        assert contents(late.cache.device, used) == contents(at_once.cache.device, used), request.step
        assert torch.equal(late.cache.token_ids[sorted(used)], at_once.cache.token_ids[sorted(used)]), request.step
        num_deferred += bool(side.waiting)
    side.wait(side.num_done + len(side.waiting))
    assert contents(late.cache.device) == contents(at_once.cache.device)
    assert torch.equal(late.cache.token_ids, at_once.cache.token_ids)
    assert contents(late.cache.host) == contents(at_once.cache.host)
    assert torch.equal(late.cache.host_token_ids, at_once.cache.host_token_ids)
    assert at_once.cache.host_token_ids.any()
    assert num_deferred > 20, "hardly any swap ran beside a step"


@pytest.mark.gpu
def test_swaps_in_a_stream_of_their_own_leave_the_caches_as_swaps_at_once() -> None:
    on_gpu, at_once = Moved(None, torch.device("cuda")), Moved(None)
    for request in random_steps(300):
        on_gpu.step(request)
        at_once.step(request)
    torch.cuda.synchronize()
    assert contents(on_gpu.cache.device) == contents(at_once.cache.device)
    assert contents(on_gpu.cache.host) == contents(at_once.cache.host)


def random_steps(count: int) -> Iterator[ExecuteModelRequest]:
    random = np.random.default_rng(5)
    for step in range(1, count):
        targets = iter((1 + random.permutation(NUM_BLOCKS - 1)).tolist())  # written to: each by one move or sequence
        host = random.permutation(NUM_BLOCKS).tolist()
        num_out, num_in, num_copies, num_seqs = random.integers(0, 3, 4)
        leaving = (1 + random.permutation(NUM_BLOCKS - 1))[:num_out].tolist()
        swap_out = list(zip(leaving, host, strict=False))
        swap_in = [(host[-1 - index], next(targets)) for index in range(num_in)]
        copied_to = [next(targets) for _ in range(num_copies)]
        untouched = [block for block in range(1, NUM_BLOCKS) if block not in copied_to]
        copies = [(int(random.choice(untouched)), target) for target in copied_to]
        parts = [Part([7] * 3, 0, [next(targets)]) for _ in range(num_seqs)]
        yield make_step(
            step,
            parts,
            blocks_to_swap_out=pairs(*swap_out),
            blocks_to_swap_in=pairs(*swap_in),
            blocks_to_copy=pairs(*copies),
        )
