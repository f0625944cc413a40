import torch

from ops.interface import Ops
from tests.ops.ragged import ragged

VOCAB = 50


def test_penalties(ops: Ops, device: torch.device) -> None:
    histories = [[], [3, 3, 9, 9, 9, 4], [1, 2], [7] * 5 + [8] * 3]
    num_prompt = [0, 2, 2, 4]
    presence, frequency, repetition = [0.5] * 4, [0.25, 0.25, 1.0, -0.5], [1.0, 2.0, 1.5, 0.8]
    logits = torch.randn(4, VOCAB, device=device)
    want = logits.double().cpu()
    for row, history in enumerate(histories):
        output = history[num_prompt[row] :]
        for token in set(history):
            value = want[row, token]
            want[row, token] = value / repetition[row] if value > 0 else value * repetition[row]
            want[row, token] -= frequency[row] * output.count(token) + presence[row] * (token in output)
    floats = [torch.tensor(column, device=device) for column in (presence, frequency, repetition)]
    prompts = torch.tensor(num_prompt, dtype=torch.int32, device=device)
    ops.apply_penalties(logits, *ragged(histories, device), prompts, *floats)
    torch.testing.assert_close(logits.cpu(), want.float(), rtol=1e-6, atol=1e-6)


def test_penalties_of_one_leave_every_bit(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    zeros, ones = torch.zeros(2, device=device), torch.ones(2, device=device)
    prompts = torch.tensor([1, 0], dtype=torch.int32, device=device)
    ops.apply_penalties(logits, *ragged([[1, 2], [3, 3]], device), prompts, zeros, zeros, ones)
    assert torch.equal(logits, before)
