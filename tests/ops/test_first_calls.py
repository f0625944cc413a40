import torch

from ops.reference.logits.logprobs import token_logprobs
from ops.reference.logits.sampling import sample
from tests.mkl_calls import begin_in_one_thread

ROWS, VOCABULARY = 8, 1024


def test_exponentials_are_first_computed_by_one_thread() -> None:
    floats, ints = torch.ones(ROWS), torch.zeros(ROWS, dtype=torch.int32)
    logits = torch.randn(ROWS, VOCABULARY)
    with begin_in_one_thread():
        sample(logits, floats, ints, floats, floats - 1, torch.zeros(ROWS, dtype=torch.int64), ints, ints)
    with begin_in_one_thread():
        token_logprobs(logits, ints, 1)
