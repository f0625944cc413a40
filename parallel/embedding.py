"""Token embeddings and the language-model head, cut by vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.interface import Ops
from parallel.group import Group
from parallel.linear import share
from parallel.weights import Weights

PADDING = 64  # the vocabulary is padded to a multiple of it, so that any allowed number of ranks divides it


class VocabParallelEmbedding:
    """A share of the rows of the embedding table; padding rows are zeros."""

    def __init__(self, vocab_size: int, *, group: Group) -> None:
        padded = -(-vocab_size // PADDING) * PADDING
        self.part = share(padded, group)
        self.vocab_size = vocab_size
        self.group = group

    def load(self, weights: Weights, name: str) -> None:
        self.weight = read_vocab_rows(weights, name, self.part, self.vocab_size)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids [T] int32 -> [T, D] dtype. Exact: all ranks but one add zeros."""
        if self.group.size == 1:
            return F.embedding(input_ids, self.weight)
        local = input_ids - self.part.start
        is_mine = (local >= 0) & (local < self.weight.shape[0])
        rows = F.embedding(local * is_mine, self.weight).float().masked_fill_(~is_mine[:, None], 0.0)
        return self.group.all_reduce(rows).to(self.weight.dtype)


class ParallelLMHead:
    """Logits over the vocabulary, in float32, on every rank; its weight may be the embedding's."""

    def __init__(self, vocab_size: int, *, ops: Ops, group: Group) -> None:
        padded = -(-vocab_size // PADDING) * PADDING
        self.part = share(padded, group)
        self.vocab_size = vocab_size
        self.ops = ops
        self.group = group

    def load(self, weights: Weights, name: str) -> None:
        self.tie(read_vocab_rows(weights, name, self.part, self.vocab_size))

    def tie(self, weight: Tensor) -> None:
        """weight [this rank's rows of the padded vocabulary, D] dtype."""
        self.weight = self.ops.prepare_linear(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, D] dtype -> [R, V] float32, contiguous."""
        logits = self.group.all_gather(self.ops.linear_float32(x, self.weight), dim=1)
        return logits[:, : self.vocab_size].contiguous()


def read_vocab_rows(weights: Weights, name: str, part: slice, vocab_size: int) -> Tensor:
    """Rows `part` of the padded vocabulary, [rows, D]."""
    rows = weights.read(f"{name}.weight", slice(min(part.start, vocab_size), min(part.stop, vocab_size)))
    missing = part.stop - part.start - rows.shape[0]
    return torch.cat((rows, rows.new_zeros(missing, rows.shape[1]))) if missing else rows
