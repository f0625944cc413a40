import pytest
import torch

from ops import reference
from parallel.embedding import ParallelLMHead, VocabParallelEmbedding
from parallel.groups.group import Group
from tests.parallel.alone import Alone, TensorWeights
from tests.parallel.ranks import run_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [64, 130, 300])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_embeddings_and_logits_are_those_of_one_rank(size: int, vocab_size: int, dtype: torch.dtype) -> None:
    table = torch.randn(vocab_size, 24).to(dtype)
    weights = TensorWeights({"embed.weight": table, "head.weight": table.flip(0)}, dtype)
    input_ids = torch.cat((torch.randint(0, vocab_size, (50,)), torch.tensor([0, vocab_size - 1]))).int()
    x = torch.randn(7, 24).to(dtype)

    def compute(tp: Group, _: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        embedding = VocabParallelEmbedding(vocab_size, ops=reference, group=tp, dtype=dtype)
        embedding.load(weights, "embed")
        head = ParallelLMHead(vocab_size, ops=reference, group=tp)
        head.load(weights, "head")
        tied = ParallelLMHead(vocab_size, ops=reference, group=tp)
        tied.weight = embedding.weight
        return embedding(input_ids), head(x), tied(x)

    for embedded, logits, tied in run_ranks(size, compute):
        assert torch.equal(embedded, table[input_ids.long()])
        assert embedded.dtype == dtype
        assert logits.dtype == torch.float32
        assert logits.is_contiguous()
        torch.testing.assert_close(logits, x.float() @ table.flip(0).float().T, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(tied, x.float() @ table.float().T, rtol=1e-5, atol=1e-5)


def test_a_rank_that_has_only_padding() -> None:
    weights = TensorWeights({"embed.weight": torch.randn(5, 24)})
    embedding = VocabParallelEmbedding(5, ops=reference, group=Alone(3, 4), dtype=torch.float32)
    embedding.load(weights, "embed")
    assert embedding.weight.shape == (16, 24)
    assert embedding.weight.eq(0).all()
    assert embedding(torch.arange(5, dtype=torch.int32)).eq(0).all()
