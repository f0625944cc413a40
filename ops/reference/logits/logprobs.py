"""Log probabilities of given tokens, their ranks, and the most likely ones."""

import torch
from torch import Tensor

from ops.checks import logprobs_sizes
from ops.reference.logits.sampling import exp_blocks, running_sums


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logprobs_sizes(logits, token_ids, num_top)
    total = logits.amax(dim=1, keepdim=True).double() + running_sums(exp_blocks(logits))[:, -1:].log()
    token_ids = token_ids.long()[:, None]
    chosen = logits.gather(1, token_ids)
    ids = torch.arange(logits.shape[1], device=logits.device)
    ranks = 1 + ((logits > chosen) | ((logits == chosen) & (ids < token_ids))).sum(dim=1)
    top_ids = _top_ids(logits, num_top)
    top = (logits.gather(1, top_ids) - total).float()
    return (chosen - total).float().squeeze(1), ranks.int(), top_ids.int(), top


def _top_ids(logits: Tensor, num_top: int) -> Tensor:
    """The ids of the largest, in falling order, the lower id first where equal: [R, num_top]
    int64.
    """
    values, ids = logits.topk(min(num_top + 1, logits.shape[1]), dim=1)
    if bool((values[:, 1:] < values[:, :-1]).all()):
        return ids[:, :num_top]
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 makes one zero of two
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    both = ordered - torch.arange(logits.shape[1], device=logits.device)
    return both.topk(num_top, dim=1).indices
