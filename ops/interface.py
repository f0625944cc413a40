"""What every backend of ops computes: names, shapes, dtypes."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ops.published import PublishedKind, PublishedWeight

# A weight in a backend's own layout; made once by prepare_*, read only by the matching op.
Prepared = Any

# How prepare_* store a weight. int8, int4: codes and a scale for each group of inputs, activations
# as they are (ops/reference/matmul/quantization.py). fp8: codes and a scale for each output and
# leaf; inputs likewise, for each row (ops/reference/matmul/float8.py). None: as it is.
Quantization = Literal["int8", "int4", "fp8"]
# A linear's weight as it was read: numbers, or codes that the checkpoint was published with, which
# are kept as they are.
Weight = Tensor | PublishedWeight


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What each row attends to in one step: a flat batch of prefill and decode rows of S
    sequences.
    """

    query_starts: Tensor  # [S + 1] int32: sequence s owns token rows query_starts[s]:query_starts[s + 1]
    context_lens: Tensor  # [S] int32: tokens in the cache, this step's included; the last query row sees them all
    block_tables: Tensor  # [S, B] int32, padded with block 0
    slot_mapping: Tensor  # [T] int32: block_id * block_size + offset
    max_query_len: int
    max_context_len: int
    # [S, key-value heads] int32, zeros: a backend may count in it, and leaves zeros. None: it makes
    # do without.
    arrivals: Tensor | None = None


# What the rows of a draw ask for at most. "greedy": all have temperature 0; "unfiltered": none has
# top_k, top_p or min_p.
Draws = Literal["greedy", "unfiltered", "any"]

# A low-rank adapter of one weight, in a backend's own layout; made by make_adapter.
PreparedAdapter = Any


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """An adapter of one of the linears that are merged in a weight: W becomes W + scale * up @
    down.
    """

    down: Tensor  # [r, in] dtype
    up: Tensor  # [outputs, r] dtype
    outputs: slice  # of the weight; those of two parts do not overlap
    scale: float


@dataclass(frozen=True, slots=True)
class Adapted:
    """Which rows of a step have adapters, and the adapters of one weight."""

    # [N, 3] int32 on the host: rows first to end have the adapter in a slot; ascending, not
    # overlapping. Some at the end may be empty: first and end are the largest number.
    runs: Tensor
    slots: "Sequence[PreparedAdapter | None] | AdapterSlots"  # None: leave the weight as it is


class AdapterSlots(Protocol):
    """The adapters of one weight, for steps on a tape: what is in a slot may change between
    replays.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[PreparedAdapter | None]: ...
    def __getitem__(self, slot: int, /) -> PreparedAdapter | None: ...
    def __setitem__(self, slot: int, adapter: PreparedAdapter | None, /) -> None: ...


class Ops(Protocol):
    """A backend. Every function takes and returns contiguous tensors on one device and checks its
    arguments.
    """

    NAME: str
    EXACT: bool  # results of a row depend on neither the rows beside it nor the tensor-parallel size
    QUANTIZATIONS: tuple[Quantization, ...]  # those that it supports
    PUBLISHED: tuple[PublishedKind, ...]  # kinds of PublishedWeight that it computes with
    HEAD_DIMS: Container[int]  # those that paged_attention supports

    def prepare_linear(self, weight: Weight, quantization: Quantization | None = None) -> Prepared:
        """weight [out, in] dtype. If quantized, the ops compute with what the codes stand for."""

    def linear(self, x: Tensor, weight: Prepared, bias: Tensor | None) -> Tensor:
        """x [T, in] dtype -> [T, out] dtype; bias [out] dtype is added in float32 before the one
        cast.
        """

    def linear_float32(self, x: Tensor, weight: Prepared) -> Tensor:
        """As linear, without bias, and not cast: [T, out] float32 (the head's logits)."""

    def prepare_embedding(self, weight: Tensor, quantization: Quantization | None = None) -> Prepared:
        """weight [rows, D] dtype, for embedding, for linear_float32, or for both where the head is
        tied to the embedding.
        """

    def embedding(self, ids: Tensor, weight: Prepared, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows ids [T] int32 of a weight [rows, D] -> [T, D] dtype, cast once."""

    def prepare_gate_up(self, weight: Weight, quantization: Quantization | None = None) -> Prepared:
        """weight [2 * I, D] dtype, gate's rows first."""

    def gate_up_silu(self, x: Tensor, weight: Prepared) -> Tensor:
        """silu(x @ gate.T) * (x @ up.T); x [T, D] dtype -> [T, I] dtype. Both products in float32,
        cast once.
        """

    def prepare_tree_linear(
        self, weight: Weight, num_leaves: int, quantization: Quantization | None = None
    ) -> Prepared:
        """weight [out, in] dtype of a row-parallel linear; `in` is cut into num_leaves (a power of
        two) equal leaves.
        """

    def linear_tree(self, x: Tensor, weight: Prepared) -> Tensor:
        """x [T, in] dtype -> [T, out] float32: the leaves' float32 products, added pairwise as a
        balanced binary tree.
        """

    def linear_leaves(self, x: Tensor, weight: Prepared) -> Tensor:
        """As linear_tree, or what its tree adds: [leaves, T, out] float32. For this backend's
        add_rms_norm and add, which take either.
        """

    def make_adapter(self, parts: Sequence[AdapterPart], weight: Prepared) -> PreparedAdapter:
        """Of a weight of prepare_linear, prepare_gate_up (gate's outputs first) or
        prepare_tree_linear.
        """

    def make_adapter_slots(self, num_slots: int, max_rank: int, num_parts: int) -> AdapterSlots:
        """Empty, for adapters of up to num_parts parts of up to max_rank each."""

    def adapted_linear(self, x: Tensor, weight: Prepared, bias: Tensor | None, adapted: Adapted) -> Tensor:
        """As linear; rows that have an adapter get up @ (scale * down @ x) added in float32, before
        the one cast. What stands in the brackets is a float32 sum that is cast to dtype.
        """

    def adapted_gate_up_silu(self, x: Tensor, weight: Prepared, adapted: Adapted) -> Tensor:
        """As gate_up_silu; gate's and up's products are those of adapted_linear."""

    def adapted_linear_tree(self, x: Tensor, weight: Prepared, adapted: Adapted) -> Tensor:
        """As linear_tree; a leaf's product has up @ (scale * down @ x) of that leaf's inputs, so
        that the tree adds up the whole.
        """

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """x [T, 2 * I] dtype -> silu(x[:, :I]) * x[:, I:], [T, I] dtype."""

    def prepare_experts(
        self,
        experts: Iterable[tuple[Weight, Weight]],
        first: int,
        num_leaves: int,
        quantization: Quantization | None = None,
    ) -> Prepared:
        """The experts with ids from `first` on: each one's gate and up [2 * I, D] dtype, gate's
        rows first, and down [D, I].

        They are cut into num_leaves (a power of two) equal leaves of neighbours. They are read one
        at a time.
        """

    def route(self, logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
        """The experts of each row of logits [T, E] float32: those with the largest logits, of equal
        ones the lower ids.

        Returns ids [T, num_chosen] int32, the likeliest first, and their probabilities [T,
        num_chosen] float32: softmax over all E; normalize: divided by their sum. A row that holds
        NaN gets some ids, each once, and NaN.
        """

    def experts_tree(self, x: Tensor, ids: Tensor, weights: Tensor, experts: Prepared) -> Tensor:
        """x [T, D] dtype -> [T, D] float32: the sum of weights * expert(x) over those of a row's
        experts that are here.

        ids, weights [T, k] of route. An expert is gate_up_silu, then a linear_float32. A leaf's sum
        is float32 and taken in order of id; the leaves' sums, zero where none was chosen, are added
        pairwise as a balanced binary tree.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, D] dtype, weight [D] -> [T, D] dtype."""

    def add_rms_norm(self, update: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual [T, D] dtype += update [T, D] float32, in place and cast once; returns its
        rms_norm, [T, D] dtype. update: also what linear_leaves returns.
        """

    def add(self, update: Tensor, residual: Tensor) -> None:
        """residual [T, D] dtype += update [T, D] float32, or what linear_leaves returns, in place
        and cast once.
        """

    def add_gated(self, gate: Tensor, x: Tensor, total: Tensor) -> None:
        """total [T, D] float32 += sigmoid(gate) * x, in place; gate [T, 1] float32, x [T, D]
        float32.
        """

    def qk_norm(self, qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int, eps: float) -> None:
        """In place on qkv [T, (H + 2 * K) * head_dim] dtype: rms_norm of each query and key head;
        weights [head_dim].
        """

    def rotary_and_cache(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> Tensor:
        """Rotate queries and keys (NeoX halves), write keys and values to their slots, return the
        queries.

        qkv [T, (H + 2 * K) * head_dim] dtype; positions [T]; cos_sin [max_positions, head_dim]
        float32, cosines first; caches [num_blocks, K, block_size, head_dim] dtype, a head's part of
        a block in the backend's own order; returns [T, H, head_dim] dtype.
        """

    def linear_rotary_and_cache(
        self,
        x: Tensor,
        weight: Prepared,
        bias: Tensor | None,
        positions: Tensor,
        cos_sin: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> Tensor:
        """x [T, in] dtype -> rotated queries: linear, whose outputs are qkv, then rotary_and_cache.
        The same bits as one after the other.
        """

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        """Causal attention over the cache. query [T, H, head_dim] dtype -> [T, H, head_dim] dtype.

        Query head h reads key-value head h // (H // K). The same arithmetic for a decode row and a
        prefill row.
        """

    def place_tokens(
        self, input_ids: Tensor, sources: Tensor, drawn: Tensor, slots: Tensor | None, token_ids: Tensor | None
    ) -> None:
        """In place on input_ids [T] int32: where sources [T] int32 is not negative, the token
        drawn[sources], drawn [*] int32. Then token_ids[slots] = input_ids, if they are given: slots
        [T] int32, token_ids [*] int32.
        """

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        """cache [num_blocks, ...]: block pairs[i, 1] becomes a copy of block pairs[i, 0]; pairs [*,
        2], disjoint.
        """

    def swap_blocks(self, source: Tensor, target: Tensor, pairs: Tensor) -> None:
        """target block pairs[i, 1] becomes a copy of source block pairs[i, 0]; one cache may be on
        the host.
        """

    def apply_mask(self, logits: Tensor, mask_starts: Tensor, mask_words: Tensor) -> None:
        """In place on logits [R, V] float32: in rows that have words, tokens are banned whose bits
        are 0.

        Row r's are mask_words[mask_starts[r]:mask_starts[r + 1]], int32: none, or ceil(V / 32) of
        them, bit t % 32 of word t // 32 being token t's.
        """

    def apply_penalties(
        self,
        logits: Tensor,
        history_ids: Tensor,
        history_starts: Tensor,
        history_lengths: Tensor,
        history_num_prompt: Tensor,
        presence: Tensor,
        frequency: Tensor,
        repetition: Tensor,
    ) -> None:
        """In place on logits [R, V] float32. Row r's tokens so far, prompt first:
        history_ids[history_starts[r] : history_starts[r] + history_lengths[r]], int32 all. Rows
        without any are left as they are.

        repetition (prompt and output tokens): positive logits are divided by it, negative ones
        multiplied. frequency and presence (output tokens only): logits -= frequency * count +
        presence * (count > 0).
        """

    def sample(
        self,
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
        """From logits [R, V] float32 (left as they are): tokens, and whether rows had any, [2, R]
        int32.

        temperature 0 takes the largest logit, lowest id first. Else: divide by temperature, keep
        the top_k largest (0 = all; ties with the k-th are kept), of those the smallest set of most
        likely tokens (of equal ones the lower ids) that holds top_p of the mass, of those the ones
        with at least min_p times the largest probability. Then inverse CDF: the first token, in
        order of id, whose running mass exceeds u * the mass kept, u = w / 2**32 in float64, w the
        first word of Philox-4x32-10(key = seed's halves, low one first, counter = (position,
        choice, 0, 0)). Masses are exp((logit - largest) / temperature), float32; blocks of 64 are
        summed in float32, across blocks in float64. seed [R] int64 bit pattern. A row whose largest
        logit is not finite (it holds NaN or inf, or nothing but -inf) gets token 0, and 0 below it;
        others 1. draws: what the caller knows of its rows, so that a backend may leave out work;
        it changes no row's token.
        """

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log_softmax at token_ids [R], their ranks (1 = largest; ties by lower id), and the
        num_top best ids and values.

        Returns [R] float32, [R] int32, [R, num_top] int32, [R, num_top] float32.
        """


def check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype | None = None) -> None:
    """Raise ValueError naming the tensor unless it has `shape` (None = any size) and `dtype`, and
    is contiguous.
    """
    if tensor.shape != shape and not _fits(
        tensor.shape, shape
    ):  # called several times per op: compare the whole shape at once
        raise ValueError(f"{name} has shape {list(tensor.shape)}, not {list(shape)}")
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}, not {dtype}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous")


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(want in (None, got) for want, got in zip(wanted, shape, strict=True))
