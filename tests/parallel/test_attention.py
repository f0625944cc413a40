import pytest
import torch
from torch import Tensor

from ops import reference
from ops.interface import AttentionMetadata
from parallel.attention import Attention, QKNorm
from parallel.rotary import cos_sin_table
from parallel.spec.rope import Rope
from tests.parallel.alone import TensorWeights

HEADS, KV_HEADS, HEAD_DIM, TOKENS, BLOCK = 8, 4, 16, 21, 16
TABLE = torch.tensor([[3, 1]], dtype=torch.int32)


def part_of(qkv: Tensor, rank: int, size: int) -> Tensor:
    """A rank's heads of qkv [T, (H + 2 * K) * head_dim], and the key-value heads they read."""
    split = qkv.view(TOKENS, -1, HEAD_DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    return torch.cat([heads.chunk(size, dim=1)[rank] for heads in split], dim=1).flatten(1)


def attend(qkv: Tensor, kv_heads: int, chunks: list[int]) -> tuple[Tensor, Tensor]:
    """The outputs of one sequence, computed in chunks, and its keys in order of position."""
    attention = Attention(HEAD_DIM, ops=reference)
    cos_sin = cos_sin_table(Rope("default", 1e4, {}, 64), HEAD_DIM, 64)
    cache = torch.full((5, kv_heads, BLOCK, HEAD_DIM), torch.nan), torch.full((5, kv_heads, BLOCK, HEAD_DIM), torch.nan)
    outputs, start = [], 0
    for end in torch.tensor(chunks).cumsum(0).tolist():
        positions = torch.arange(start, end)
        metadata = AttentionMetadata(
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=TABLE,
            slot_mapping=(TABLE[0, positions // BLOCK] * BLOCK + positions % BLOCK).int(),
            max_query_len=end - start,
            max_context_len=end,
        )
        outputs.append(attention(qkv[start:end].clone(), positions.int(), cos_sin, cache, metadata))
        start = end
    return torch.cat(outputs), cache[0][TABLE[0].long()].transpose(1, 2).flatten(0, 1)[:TOKENS]


@pytest.mark.parametrize("size", [2, 4])
def test_a_ranks_heads_attend_as_they_do_among_all(size: int) -> None:
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    whole, keys = attend(qkv, KV_HEADS, [TOKENS])
    for rank in range(size):
        got, own_keys = attend(part_of(qkv, rank, size), KV_HEADS // size, [TOKENS])
        torch.testing.assert_close(got, whole.chunk(size, dim=1)[rank])
        assert torch.equal(own_keys, keys.chunk(size, dim=1)[rank])


def test_what_chunks_have_written_is_read_by_later_ones() -> None:
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    whole, keys = attend(qkv, KV_HEADS, [TOKENS])
    got, again = attend(qkv, KV_HEADS, [1, 16, 3, 1])
    torch.testing.assert_close(got, whole)
    assert torch.equal(again, keys)
    assert not whole.isnan().any(), "cells that nobody wrote are not read"


def test_queries_and_keys_are_normed_by_head_and_values_are_left() -> None:
    weights = TensorWeights({f"attn.{name}_norm.weight": torch.rand(HEAD_DIM) + 0.5 for name in ("q", "k")})
    norm = QKNorm(KV_HEADS, 1e-6, ops=reference)
    norm.load(weights, "attn")
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    queries, keys, values = qkv.clone().view(TOKENS, -1, HEAD_DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)

    def normed(heads: Tensor, name: str) -> Tensor:
        return torch.nn.functional.rms_norm(heads, (HEAD_DIM,), weights.tensors[f"attn.{name}_norm.weight"], 1e-6)

    got = norm(qkv)
    assert got is qkv
    want = torch.cat([normed(queries, "q"), normed(keys, "k"), values], dim=1).flatten(1)
    torch.testing.assert_close(got, want)
