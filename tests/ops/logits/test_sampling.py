import numpy as np
import pytest
import torch
from torch import Tensor

from ops.interface import Ops
from ops.reference.logits.philox import uniform
from ops.reference.logits.sampling import inverse_cdf

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def columns(num_rows: int, device: torch.device, **values: float | list[float]) -> dict[str, Tensor]:
    """Sampling columns, all filters off but those named; seeds 0, 1, 2, ..."""
    made = {
        name: torch.tensor(values[name]).expand(num_rows) if name in values else torch.full((num_rows,), off)
        for name, off in OFF.items()
    }
    kinds = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    made = {name: column.to(kinds[name]).contiguous() for name, column in made.items()}
    zeros = torch.zeros(num_rows, dtype=torch.int32)
    made |= {"seed": torch.arange(num_rows), "choice": zeros, "position": zeros + 3}
    return {name: column.to(device) for name, column in made.items()}


def kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The masses of what may be sampled from one row, in float64, found by sorting."""
    mass = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    if top_k:
        mass[logits < np.sort(logits)[-min(top_k, len(logits))]] = 0
    order = np.lexsort((np.arange(len(mass)), -mass))
    before = np.cumsum(mass[order]) - mass[order]
    mass[order[before >= top_p * mass.sum()]] = 0 if top_p < 1 else mass[order[before >= top_p * mass.sum()]]
    mass[mass < min_p] = 0
    return mass


FILTERS = [
    {},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.2},
    {"temperature": 1.7, "top_k": 40, "top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 300, 5000])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_token_is_the_inverse_cdf_of_what_is_kept(
    ops: Ops, device: torch.device, vocab_size: int, filters: dict[str, float]
) -> None:
    logits = torch.randn(40, vocab_size, device=device) * 2
    made = columns(40, device, **filters)
    before = logits.clone()
    tokens, have_any = ops.sample(logits, **made)
    assert torch.equal(logits, before)
    assert have_any.all()
    assert tokens.dtype == torch.int32
    numbers = uniform(made["seed"], made["choice"], made["position"]).tolist()
    for row, token, number in zip(logits.cpu().numpy(), tokens.tolist(), numbers, strict=True):
        mass = kept(row, **(OFF | filters))
        filled = np.cumsum(mass) / mass.sum()
        assert mass[token] > 0
        assert filled[token] - mass[token] / mass.sum() - 1e-6 <= number <= filled[token] + 1e-6


def test_filters_are_each_rows_own(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(1, 700, device=device).expand(len(FILTERS) + 1, -1).contiguous()
    rows = [*({**OFF, **filters} for filters in FILTERS), {**OFF, "temperature": 0.0}]
    made = columns(len(rows), device, **{name: [row[name] for row in rows] for name in OFF})
    together = ops.sample(logits, **made)[0]
    assert together[-1] == logits[-1].argmax()
    for row in range(len(rows)):
        alone = ops.sample(logits[row : row + 1], **{name: column[row : row + 1] for name, column in made.items()})[0]
        assert alone[0] == together[row]


def test_a_number_on_a_boundary_belongs_to_the_token_above_and_none_to_tokens_without_mass() -> None:
    blocks = torch.ones(6, 2, 64)
    blocks[3:, 0] = 0.0
    blocks[3:, 1, :6] = 0.0
    numbers = torch.tensor([0.0, 0.25, 0.5, 0.0, 1 / 58, 1 - 2.0**-32], dtype=torch.float64)
    assert inverse_cdf(blocks, numbers).tolist() == [0, 32, 64, 70, 71, 127]


def test_frequencies_follow_the_probabilities(ops: Ops, device: torch.device) -> None:
    logits = torch.tensor([0.0, 1.0, -torch.inf, 2.0, 0.5], device=device).expand(20_000, -1).contiguous()
    observed = torch.bincount(ops.sample(logits, **columns(20_000, device))[0].long(), minlength=5).cpu().double()
    expected = logits[0].softmax(0).cpu().double() * 20_000
    assert observed[2] == 0
    likely = expected > 0
    assert ((observed - expected)[likely] ** 2 / expected[likely]).sum() < 25  # 3 degrees of freedom


def test_greedy_takes_the_lowest_of_equal_ids(ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(3, 500, device=device)
    logits[0, [77, 300, 499]] = 1.0
    logits[1, 2:] = -torch.inf
    assert ops.sample(logits, **columns(3, device, temperature=0.0))[0].tolist() == [77, 0, 0]


def test_top_k_keeps_all_that_are_equal_to_the_last(ops: Ops, device: torch.device) -> None:
    logits = torch.full((2000, 100), -1.0, device=device)
    logits[:, [5, 20, 80]] = 2.0
    assert set(ops.sample(logits, **columns(2000, device, top_k=2))[0].tolist()) == {5, 20, 80}


def test_top_p_keeps_the_lower_of_equal_ids(ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(4000, 1000, device=device)
    logits[:, [3, 900]] = 7.0
    mass = kept(logits[0].cpu().numpy(), **(OFF | {"top_p": 0.8}))
    tokens = set(ops.sample(logits, **columns(4000, device, top_p=0.8))[0].tolist())
    assert {3, 900} <= tokens <= set(mass.nonzero()[0].tolist())
    assert max(tokens - {900}) == max(mass.nonzero()[0][:-1]) < 500
    assert ops.sample(logits[:1], **columns(1, device, top_p=1e-6))[0].tolist() == [3]


@pytest.mark.parametrize("share", [0.0, 1e-45])
def test_the_smallest_top_p_keeps_the_likeliest_token(ops: Ops, device: torch.device, share: float) -> None:
    """Of requests it is above 0, which float32 does not hold of a number as small as 1e-46."""
    logits = torch.randn(5, 300, device=device).round()
    rows = columns(5, device, top_p=[share, share, share, 1.0, share], temperature=[1.0, 0.1, 1.0, 1.0, 0.0])
    assert ops.sample(logits, **rows)[0][[0, 1, 2, 4]].tolist() == logits.argmax(1)[[0, 1, 2, 4]].tolist()


def test_extreme_temperatures_and_logits(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(50, 300, device=device) * 1e4
    assert torch.equal(ops.sample(logits, **columns(50, device, temperature=1e-30))[0], logits.argmax(1).int())
    assert torch.equal(ops.sample(logits, **columns(50, device, top_k=1))[0], logits.argmax(1).int())
    assert torch.equal(ops.sample(logits, **columns(50, device, min_p=1.0))[0], logits.argmax(1).int())


def test_rows_that_have_no_token_are_found(ops: Ops, device: torch.device) -> None:
    logits = torch.full((5, 70), -torch.inf, device=device)
    logits[1] = torch.nan
    logits[2:] = torch.arange(70.0, device=device)
    logits[2, 66], logits[3, 3] = torch.nan, torch.inf
    for filters in (*FILTERS, {"temperature": 0.0}):
        tokens, have_any = ops.sample(logits, **columns(5, device, **filters))
        assert have_any.tolist() == [0, 0, 0, 0, 1]
        assert tokens[:4].tolist() == [0, 0, 0, 0]


def test_seed_choice_and_position_each_matter(ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(1, 5000, device=device)
    made = columns(1, device)
    changed = [made, *({**made, name: made[name] + 1} for name in ("seed", "choice", "position"))]
    changed.append({**made, "seed": made["seed"] + (1 << 32)})
    tokens = [int(ops.sample(logits, **each)[0]) for each in changed]
    assert len(set(tokens)) == len(tokens)
    assert int(ops.sample(logits, **made)[0]) == tokens[0]


def test_no_rows(ops: Ops, device: torch.device) -> None:
    assert ops.sample(torch.zeros(0, 100, device=device), **columns(0, device)).shape == (2, 0)


def test_columns_of_the_wrong_type_are_refused(ops: Ops, device: torch.device) -> None:
    made = columns(2, device)
    with pytest.raises(ValueError, match="seed is"):
        ops.sample(torch.zeros(2, 100, device=device), **(made | {"seed": made["seed"].int()}))
    with pytest.raises(ValueError, match=r"top_p has shape \[1\]"):
        ops.sample(torch.zeros(2, 100, device=device), **(made | {"top_p": made["top_p"][:1]}))
