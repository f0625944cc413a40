import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from ops import kernels, reference
from ops.kernels.logits.rows import MAX_CHUNK
from tests.ops.kernels.where import DEVICE, IS_INTERPRETED, MARKS

pytestmark = MARKS

ROWS = [  # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.3, 0, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.0, 1 << 20, 1.0, 0.0),
    (1.0, 0, 0.6, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 0.2),
    (1.7, 40, 0.8, 0.05),
    (1e-30, 0, 1.0, 0.0),
    (1.0, 1, 1e-6, 1.0),
    (1.0, 3, 0.9, 0.0),
    (2.0, 200, 0.97, 0.0),
]


def columns(num_rows: int) -> dict[str, Tensor]:
    temperature, top_k, top_p, min_p = zip(*(ROWS[row % len(ROWS)] for row in range(num_rows)), strict=True)
    made = {
        "temperature": torch.tensor(temperature),
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": torch.tensor(top_p),
        "min_p": torch.tensor(min_p),
        "seed": torch.randint(-(1 << 62), 1 << 62, (num_rows,)),
        "choice": torch.randint(0, 4, (num_rows,), dtype=torch.int32),
        "position": torch.randint(0, 1 << 20, (num_rows,), dtype=torch.int32),
    }
    return {name: column.to(DEVICE) for name, column in made.items()}


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 300, MAX_CHUNK + 5])
def test_the_tokens_are_the_references(vocab_size: int) -> None:
    logits = torch.randn(len(ROWS), vocab_size, device=DEVICE) * 2
    before, made = logits.clone(), columns(len(ROWS))
    assert torch.equal(kernels.sample(logits, **made), reference.sample(logits, **made))
    assert torch.equal(logits, before)


def test_equal_logits_are_kept_by_the_references_rules() -> None:
    """Ties with the k-th are kept; of tokens at the edge of top_p the lower ids; both zeros are
    one.
    """
    num_rows = 3 * len(ROWS)
    logits = torch.randint(-2, 3, (num_rows, 200), device=DEVICE).float()
    logits[:, ::2] *= -1.0
    logits[len(ROWS) : 2 * len(ROWS)] = 0.0
    logits[2 * len(ROWS) :, 30:] = -torch.inf
    # Interpreted, each third: all of ROWS once, and of each kind of logits some.
    some = torch.arange(0, num_rows, 3 if IS_INTERPRETED else 1, device=DEVICE)
    logits, made = logits[some], {name: column[some] for name, column in columns(num_rows).items()}
    assert torch.equal(kernels.sample(logits, **made), reference.sample(logits, **made))


def test_what_no_row_asks_for_may_be_left_out() -> None:
    """A row's token is the same whatever the others ask for."""
    logits = torch.randn(3, MAX_CHUNK + 5, device=DEVICE) * 2
    logits[1] = logits[1].round()
    made = columns(3)
    assert not made["top_k"].any(), "rows with a temperature alone"
    tokens = kernels.sample(logits, **made)
    assert torch.equal(kernels.sample(logits, **made, draws="unfiltered"), tokens)
    made["temperature"].zero_()
    greedy = kernels.sample(logits, **made)
    logits[2, 70] = torch.nan
    assert torch.equal(kernels.sample(logits, **made, draws="greedy")[:, :2], greedy[:, :2])
    assert kernels.sample(logits, **made, draws="greedy")[:, 2].tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # numpy's, for the interpreter's maximum
@pytest.mark.parametrize("vocab_size", [70, MAX_CHUNK + 5])
def test_one_nan_or_infinity_is_found_wherever_it_is(vocab_size: int) -> None:
    num_rows = len(ROWS) if IS_INTERPRETED else 2 * len(ROWS)
    logits = torch.randn(num_rows, vocab_size, device=DEVICE)
    for row in range(num_rows):
        logits[row, (0, 31, 64, -1)[row % 4]] = (torch.nan, torch.inf, -torch.nan)[row // 4 % 3]
    logits[3] = -torch.inf
    logits[7] = torch.nan
    logits[11, :-1], logits[12, 1:] = -torch.inf, torch.nan
    logits[5], logits[9] = 1.0, torch.tensor([-torch.inf, 1.0], device=DEVICE).repeat(vocab_size)[:vocab_size]
    logits[10] = -3e38
    made = columns(num_rows)
    tokens, are_drawn = kernels.sample(logits, **made)
    assert torch.equal(torch.stack((tokens, are_drawn)), reference.sample(logits, **made))
    assert are_drawn.nonzero()[:, 0].tolist() == [5, 9, 10]
    assert not tokens[are_drawn == 0].any()


@pytest.mark.parametrize("vocab_size", [7, 300, MAX_CHUNK + 5])
def test_logprobs_are_the_references(vocab_size: int) -> None:
    logits = torch.randint(-40, 40, (4, vocab_size), device=DEVICE) / 8
    logits[1, 1:] = -torch.inf
    token_ids = torch.tensor([0, 0, 3, vocab_size - 1], dtype=torch.int32, device=DEVICE)
    num_top = min(5, vocab_size)
    got, want = (ops.token_logprobs(logits, token_ids, num_top) for ops in (kernels, reference))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[2], want[2])
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got[3], want[3], rtol=1e-6, atol=1e-6)
