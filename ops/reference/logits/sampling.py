"""One token a row: the largest logit, or an inverse CDF at one counter-based random number."""

import torch
from torch import Tensor

from ops.checks import sample_sizes
from ops.first_calls import call_first
from ops.interface import Draws
from ops.logits.drawn import drawn
from ops.reference.logits.philox import uniform

BLOCK = 64
FIRST_WIDTH = 256  # number of most likely tokens sorted first for top_p; 16 times as many if they are not enough


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
    *,
    draws: Draws = "any",
) -> Tensor:
    sample_sizes(logits, temperature, top_k, top_p, min_p, seed, choice, position)
    return drawn(_tokens(logits, temperature, top_k, top_p, min_p, seed, choice, position), logits)


def _tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
) -> Tensor:
    """[R] int32; some token below V of a row that holds NaN, or nothing but -inf."""
    rows = temperature.nonzero().squeeze(1)
    if rows.shape[0] == 0:
        return logits.argmax(dim=1).int()
    if rows.shape[0] == logits.shape[0]:
        mass = _mass(logits, temperature, top_k, top_p, min_p)
        return inverse_cdf(mass, uniform(seed, choice, position)).int()
    tokens = logits.argmax(dim=1).int()
    columns = (logits, temperature, top_k, top_p, min_p, seed, choice, position)
    tokens[rows] = _tokens(*(column[rows] for column in columns))
    return tokens


def inverse_cdf(blocks: Tensor, number: Tensor) -> Tensor:
    """The first token, in order of id, whose running mass exceeds number * total: first its block,
    then within it.

    A block's sum and the running sum inside it may differ in the last bit, so the search ends at
    the last token with any mass.
    """
    filled = running_sums(blocks)
    target = number[:, None] * filled[:, -1:]
    block_ids = torch.searchsorted(filled, target, right=True).clamp_(max=blocks.shape[1] - 1)
    before = filled.gather(1, (block_ids - 1).clamp(min=0)).masked_fill_(block_ids == 0, 0.0)
    block = blocks[torch.arange(len(blocks), device=blocks.device), block_ids.squeeze(1)]
    inside = block.double().cumsum(dim=1)
    last = (inside < inside[:, -1:]).sum(dim=1, keepdim=True)
    offset = torch.searchsorted(inside, target - before, right=True).minimum(last)
    return (block_ids * BLOCK + offset).squeeze(1)


def exp_blocks(logits: Tensor, temperature: Tensor | None = None) -> Tensor:
    """exp((logits - max) / temperature), [R, V] -> [R, ceil(V / 64), 64] float32, zeros at the end:
    the largest is 1.
    """
    num_rows, vocab_size = logits.shape
    blocks = logits.new_zeros(num_rows, -(-vocab_size // BLOCK), BLOCK)
    mass = blocks.view(num_rows, -1)[:, :vocab_size]
    torch.sub(logits, logits.amax(dim=1, keepdim=True), out=mass)
    if temperature is not None:
        mass.div_(temperature[:, None])
    if logits.device.type == "cpu":
        call_first(torch.exp)
    mass.exp_()
    return blocks


def block_sums(blocks: Tensor) -> Tensor:
    """[R, N, 64] -> [R, N] float32, added in halves (32 + 32, 16 + 16, ...): an order that every
    machine can follow.
    """
    while blocks.shape[2] > 1:
        blocks = blocks[..., : blocks.shape[2] // 2] + blocks[..., blocks.shape[2] // 2 :]
    return blocks.squeeze(2)


def running_sums(blocks: Tensor) -> Tensor:
    """[R, N, 64] -> [R, N] float64: the mass up to the end of each block; the last is a row's whole
    mass.
    """
    return block_sums(blocks).double().cumsum(dim=1)


def _mass(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Unnormalised probabilities of the tokens that may be sampled, [R, N, 64] float32; 0
    elsewhere.
    """
    blocks = exp_blocks(logits, temperature)
    mass = blocks.view(logits.shape[0], -1)
    _keep_top_k(mass, logits, top_k)
    _keep_top_p(mass, top_p)
    if bool((min_p > 0).any()):
        mass.masked_fill_(mass < min_p[:, None], 0.0)
    return blocks


def _keep_top_k(mass: Tensor, logits: Tensor, top_k: Tensor) -> None:
    vocab_size = logits.shape[1]
    rows = ((top_k > 0) & (top_k < vocab_size)).nonzero().squeeze(1)
    if rows.shape[0] == 0:
        return
    ranks = top_k[rows].long() - 1
    largest = logits[rows].topk(int(ranks.max()) + 1, dim=1).values
    dropped = logits[rows] < largest.gather(1, ranks[:, None])
    mass[rows, :vocab_size] = mass[rows, :vocab_size].masked_fill_(dropped, 0.0)


def _keep_top_p(mass: Tensor, top_p: Tensor) -> None:
    """Keep the most likely tokens up to the one that fills top_p of the mass; of equal ones the
    lower ids.
    """
    rows = (top_p < 1).nonzero().squeeze(1)
    if rows.shape[0] == 0:
        return
    part = mass[rows]
    target = top_p[rows].double() * running_sums(part.view(len(rows), -1, BLOCK))[:, -1]
    largest, filled = _largest(part, target)
    num_kept = (filled < target[:, None]).sum(dim=1, keepdim=True).add_(1).clamp_(max=largest.shape[1])
    smallest = largest.gather(1, num_kept - 1)
    above = part > smallest
    ties = part == smallest
    num_ties = num_kept - above.sum(dim=1, keepdim=True)
    if bool((ties.sum(dim=1, keepdim=True) > num_ties).any()):
        ties &= ties.cumsum(dim=1) <= num_ties
    mass[rows] = part.masked_fill_(~(above | ties), 0.0)


def _largest(mass: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row in falling order, and their running sum in float64: enough of them to
    reach `target`.
    """
    width = min(FIRST_WIDTH, mass.shape[1])
    while True:
        largest = mass.topk(width, dim=1).values
        filled = largest.double().cumsum(dim=1)
        if width == mass.shape[1] or bool((filled[:, -1] >= target).all()):
            return largest, filled
        width = min(16 * width, mass.shape[1])
