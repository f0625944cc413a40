"""Token embeddings and the language-model head, cut by vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.interface import Ops
from parallel.groups.group import Group
from parallel.linear import share
from parallel.weights import Weights

PADDING = 64  # the vocabulary is padded to a multiple of this, which any allowed number of ranks divides


class VocabShard:
    """This rank's rows of a matrix with one row per token, `weight` (of prepare_embedding); padding
    rows are zeros.
    """

    def __init__(self, vocab_size: int, *, ops: Ops, group: Group) -> None:
        padded = -(-vocab_size // PADDING) * PADDING
        self.part = share(padded, group)
        self.vocab_size = vocab_size
        self.ops = ops
        self.group = group

    def load(self, weights: Weights, name: str) -> None:
        self.weight = self.ops.prepare_embedding(read_vocab_rows(weights, name, self.part, self.vocab_size))


class VocabParallelEmbedding(VocabShard):
    """The embedding table; a tied head may use the same weight."""

    def __init__(self, vocab_size: int, *, ops: Ops, group: Group, dtype: torch.dtype) -> None:
        super().__init__(vocab_size, ops=ops, group=group)
        self.dtype = dtype

    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids [T] int32 -> [T, D] dtype. Exact: all ranks but one add zeros."""
        if self.group.size == 1:
            return self.ops.embedding(input_ids, self.weight, self.dtype)
        is_mine = (input_ids >= self.part.start) & (input_ids < self.part.stop)
        rows = self.ops.embedding((input_ids - self.part.start) * is_mine, self.weight)
        return self.group.all_reduce(rows.masked_fill_(~is_mine[:, None], 0.0)).to(self.dtype)


class ParallelLMHead(VocabShard):
    """Logits over the vocabulary, in float32, on every rank; its weight may be the embedding's."""

    def __init__(self, vocab_size: int, *, ops: Ops, group: Group) -> None:
        super().__init__(vocab_size, ops=ops, group=group)
        self.num_logits = vocab_size  # V; of a draft model its model's, which may pad its vocabulary differently

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, D] dtype -> [R, V] float32, contiguous."""
        logits = self.group.all_gather(self.ops.linear_float32(x, self.weight), dim=1)
        logits = logits[:, : min(self.vocab_size, self.num_logits)].contiguous()
        missing = self.num_logits - logits.shape[1]
        return F.pad(logits, (0, missing), value=-torch.inf) if missing else logits


def read_vocab_rows(weights: Weights, name: str, part: slice, vocab_size: int) -> Tensor:
    """Rows `part` of the padded vocabulary, [rows, D]."""
    rows = weights.read(f"{name}.weight", slice(min(part.start, vocab_size), min(part.stop, vocab_size)))
    missing = part.stop - part.start - rows.shape[0]
    return torch.cat((rows, rows.new_zeros(missing, rows.shape[1]))) if missing else rows
