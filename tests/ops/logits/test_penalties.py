import pytest
import torch
from torch import Tensor

from ops.interface import Ops

VOCAB = 50


def histories_of(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """As ops take them: each row's tokens begin at a multiple of four, and others lie between."""
    ids: list[int] = []
    starts = []
    for row in rows:
        ids += [VOCAB - 1] * (-len(ids) % 4)
        starts.append(len(ids))
        ids += row
    lists = (ids, starts, list(map(len, rows)))
    return tuple(torch.tensor(each, dtype=torch.int32, device=device) for each in lists)


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
    ops.apply_penalties(logits, *histories_of(histories, device), prompts, *floats)
    torch.testing.assert_close(logits.cpu(), want.float(), rtol=1e-6, atol=1e-6)


def test_penalties_of_one_leave_every_bit(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    zeros, ones = torch.zeros(2, device=device), torch.ones(2, device=device)
    prompts = torch.tensor([1, 0], dtype=torch.int32, device=device)
    ops.apply_penalties(logits, *histories_of([[1, 2], [3, 3]], device), prompts, zeros, zeros, ones)
    assert torch.equal(logits, before)


def test_a_row_alone_has_the_bits_it_has_beside_others(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(9, VOCAB, device=device)
    rows = torch.randint(VOCAB, (9, 30)).tolist()
    prompts = torch.arange(1, 10, dtype=torch.int32, device=device)
    floats = [torch.rand(9, device=device) + 0.5 for _ in range(3)]
    together = logits.clone()
    ops.apply_penalties(together, *histories_of(rows, device), prompts, *floats)
    assert not torch.equal(together, logits)
    for row in range(9):
        alone, one = logits[[row]], slice(row, row + 1)
        columns = (prompts[one].clone(), *(column[one].clone() for column in floats))
        ops.apply_penalties(alone, *histories_of(rows[one], device), *columns)
        assert torch.equal(alone[0], together[row])


def test_columns_of_another_length_are_refused(ops: Ops, device: torch.device) -> None:
    one, two = torch.ones(1, device=device), torch.ones(2, device=device)
    ids, starts, lengths = histories_of([[1], [2]], device)
    with pytest.raises(ValueError, match="history_lengths"):
        ops.apply_penalties(torch.zeros(2, VOCAB, device=device), ids, starts, lengths[:1], lengths, two, two, two)
    with pytest.raises(ValueError, match="repetition"):
        ops.apply_penalties(torch.zeros(2, VOCAB, device=device), ids, starts, lengths, lengths, two, two, one)
