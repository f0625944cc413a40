"""From logits to a token and its logprobs."""

from ops.kernels.logits.logprobs import token_logprobs
from ops.kernels.logits.penalties import apply_penalties
from ops.kernels.logits.sampling import sample

__all__ = ["apply_penalties", "sample", "token_logprobs"]
