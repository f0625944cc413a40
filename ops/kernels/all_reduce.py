"""A sum over the ranks of a node, in the order of ops.tree, through memory that each rank can read
of the others.

Every rank has a buffer of one layout: flags, then two halves, each with room for what a rank gives
and for sums. Calls alternate between the halves, so that one synchronization per call is enough to
protect a slow reader. No state is kept on the host: a CUDA graph may be replayed. Waiting for a
missing rank ends when the host says so, or after a number of checks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 32  # the same for every call, so that their counts of calls agree
BLOCK = 1024
PHASES = 2
STOPPED, TIMED_OUT = tl.constexpr(1), tl.constexpr(2)
LOOKS_BETWEEN = tl.constexpr(256)  # checks of flags between two checks of the host's flag, which is slow to read


@triton.jit
def _buffers(peers, RANKS: tl.constexpr):
    """Where each rank's buffer begins, [RANKS] pointers to float32."""
    return tl.multiple_of(tl.load(peers + tl.arange(0, RANKS)).to(tl.pointer_type(tl.float32)), [16])


@triton.jit
def _meet(peers, stopped, looks, call, phase, RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr):
    """Return when this program has arrived on every rank; what they wrote before can be read
    then.
    """
    tl.debug_barrier()
    ranks = tl.arange(0, RANKS)
    first = (phase * PROGRAMS + tl.program_id(0)) * RANKS
    theirs = tl.load(peers + ranks).to(tl.pointer_type(tl.int32))
    tl.atomic_xchg(theirs + first + RANK, tl.full([RANKS], 0, tl.int32) + call, sem="release", scope="sys")
    mine = tl.load(peers + RANK).to(tl.pointer_type(tl.int32)) + first + ranks
    num_looks = 0
    is_waiting = 1
    while is_waiting != 0:
        # A difference, because counts wrap around; for every rank, because some are ahead.
        behind = call - tl.atomic_add(mine, tl.zeros([RANKS], tl.int32), sem="acquire", scope="sys")
        is_waiting = (tl.max(behind, 0) > 0).to(tl.int32)
        if (is_waiting != 0) & (num_looks % LOOKS_BETWEEN == 0):
            if num_looks > looks:
                tl.store(stopped, TIMED_OUT)
            is_waiting = (tl.load(stopped, volatile=True) == 0).to(tl.int32)
        num_looks += 1
    tl.debug_barrier()


@triton.jit
def _tree(buffers, cells, exists, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """The ranks' numbers at `cells` of their buffers, [BLOCK], neighbours first."""
    sums = tl.load(buffers[:, None] + cells[None, :], mask=exists[None, :], other=0.0, volatile=True)
    for level in tl.static_range(4):
        if (RANKS >> level) > 1:
            sums = tl.sum(tl.reshape(sums, [RANKS >> (level + 1), 2, BLOCK]), 1)
    return tl.reshape(sums, [BLOCK])


@triton.jit(do_not_specialize=["size", "looks"])
def all_reduce_kernel(
    x,
    output,
    peers,  # [RANKS] int64: addresses of the buffers
    calls,  # [PROGRAMS] int32: number of earlier calls
    stopped,  # one int32 on the host: not 0 to stop waiting
    size,
    looks,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FLAGS: tl.constexpr,
    IS_TWO_SHOT: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (PROGRAMS,). One shot: each rank adds everything. Two: each adds its part of a tile, and
    reads the others' parts.
    """
    PARTS: tl.constexpr = RANKS if IS_TWO_SHOT else 1
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    buffers = _buffers(peers, RANKS)
    own = tl.multiple_of(tl.load(peers + RANK).to(tl.pointer_type(tl.float32)), 16)
    call = tl.load(calls + program) + 1
    given = FLAGS + (call & 1) * (2 * CAPACITY)
    for first in range(program * (PARTS * BLOCK), size, PROGRAMS * PARTS * BLOCK):
        for part in tl.static_range(PARTS):
            cells = first + part * BLOCK + columns
            tl.store(own + given + cells, tl.load(x + cells, mask=cells < size, other=0.0), mask=cells < size)
    _meet(peers, stopped, looks, call, 0, RANK, RANKS, PROGRAMS)
    for first in range(program * (PARTS * BLOCK), size, PROGRAMS * PARTS * BLOCK):
        cells = first + columns + (RANK * BLOCK if IS_TWO_SHOT else 0)
        sums = _tree(buffers, given + cells, cells < size, RANKS, BLOCK)
        if IS_TWO_SHOT:
            tl.store(own + given + CAPACITY + cells, sums, mask=cells < size)
        else:
            tl.store(output + cells, sums, mask=cells < size)
    if IS_TWO_SHOT:
        _meet(peers, stopped, looks, call, 1, RANK, RANKS, PROGRAMS)
        for first in range(program * (PARTS * BLOCK), size, PROGRAMS * PARTS * BLOCK):
            for part in tl.static_range(PARTS):
                cells = first + part * BLOCK + columns
                theirs = tl.load(peers + part).to(tl.pointer_type(tl.float32)) + given + CAPACITY
                sums = tl.load(tl.multiple_of(theirs, 16) + cells, mask=cells < size, other=0.0, volatile=True)
                tl.store(output + cells, sums, mask=cells < size)
    tl.store(calls + program, call)


def num_flags(num_ranks: int) -> int:
    """int32 words at the beginning of a buffer."""
    return PHASES * PROGRAMS * num_ranks


def buffer_size(num_ranks: int, capacity: int) -> int:
    """float32 words of a buffer whose calls have up to `capacity` (a multiple of 4) numbers; it
    begins as zeros.
    """
    return num_flags(num_ranks) + 4 * capacity


def all_reduce(
    x: Tensor,
    peers: Tensor,
    calls: Tensor,
    stopped: Tensor,
    *,
    rank: int,
    capacity: int,
    is_two_shot: bool,
    looks: int,
) -> Tensor:
    """x float32 of up to `capacity` numbers -> the sum of all ranks', the same bits on each.

    peers [ranks] int64 are the buffers' addresses, in order of rank; calls [PROGRAMS] int32 and
    stopped [1] int32 (in pinned memory, where there is a GPU) begin as zeros and are this rank's.
    Once stopped[0] is not 0, results are undefined; a rank that has checked that many times for a
    missing rank sets it to TIMED_OUT.
    """
    num_ranks = len(peers)
    if num_ranks not in (2, 4, 8):
        raise ValueError(f"2, 4 or 8 ranks are added as a balanced tree, not {num_ranks}")
    if x.dtype != torch.float32 or not x.is_contiguous() or x.numel() > capacity:
        raise ValueError(f"x is {x.dtype} {list(x.shape)}, not up to {capacity} contiguous float32 numbers")
    output = torch.empty_like(x)
    all_reduce_kernel[(PROGRAMS,)](
        x, output, peers, calls, stopped, x.numel(), looks,
        RANK=rank, RANKS=num_ranks, CAPACITY=capacity, FLAGS=num_flags(num_ranks), IS_TWO_SHOT=is_two_shot,
        PROGRAMS=PROGRAMS, BLOCK=BLOCK,
    )  # fmt: skip
    return output
