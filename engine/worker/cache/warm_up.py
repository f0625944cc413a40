"""Kernels are compiled at their first launch: done here, before a request would wait for it and its
step would seem to hang.
"""

import torch

from engine.worker.cache.trial_steps import decode_request, demanding_request, mixed_request, prefill_request
from engine.worker.graphs.graphs import KINDS
from engine.worker.model_runner import ModelRunner

# Rows of a step with which products have another tile. How many these are follows from a weight's
# shape as well; of usual weights each tile is among these.
ROWS = (1, 32, 64, *((1 << power) + 1 for power in range(6, 16)))
# Sequences of a step, above which attention is compiled anew: it counts them as a power of two.
SEQUENCES = 128
LONGEST = 1024  # tokens: contexts of several splits, whose results are folded


def warm_up(
    runner: ModelRunner, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, vocab_size: int
) -> None:
    """Run steps of every kind, in block 1; every rank must call it."""
    longest = min(LONGEST, max_model_len)
    decodes = {min(rows, max_num_seqs) for rows in (*ROWS, max_num_seqs)}
    prefills = {min(rows, max_num_batched_tokens) for rows in (*ROWS[1:], longest)}
    with torch.inference_mode():
        for num_rows in sorted(decodes):
            runner.launch(decode_request(num_rows, longest)).result()
        for draws in KINDS:
            runner.launch(decode_request(1, longest, draws)).result()
        runner.launch(demanding_request(longest, vocab_size)).result()
        for num_rows in sorted(prefills):
            runner.launch(prefill_request(num_rows, max_num_seqs, longest)).result()
        for num_seqs in _numbers_of_sequences(min(max_num_seqs, max_num_batched_tokens - 1)):
            runner.launch(mixed_request(num_seqs + 1, num_seqs, longest)).result()


def _numbers_of_sequences(most: int) -> list[int]:
    """One for each that attention is compiled for, beyond the least, up to `most`."""
    numbers = []
    above = SEQUENCES
    while above < most:
        numbers.append(min(2 * above, most))
        above *= 2
    return numbers
