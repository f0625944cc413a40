import numpy as np
import pytest
import torch

from ops.reference.logits.philox import philox, uniform

# The known answers that come with Random123 (kat_vectors): counter, key, output.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter: str, key: str, output: str) -> None:
    assert philox(words(counter), words(key)) == words(output)  # type: ignore[arg-type]


def test_uniform_takes_the_first_word_of_seed_choice_and_position() -> None:
    seeds = torch.tensor([0, -1, 5, 0x299F31D0A4093822])
    choices, positions = torch.tensor([0, 0, 2, 3], dtype=torch.int32), torch.tensor([0, 9, 1, 1], dtype=torch.int32)
    got = uniform(seeds, choices, positions)
    assert got.dtype == torch.float64
    assert got[0] == 0x6627E8D5 / 2**32
    for row in range(4):
        seed = int(seeds[row]) % 2**64
        key = torch.tensor([seed % 2**32]), torch.tensor([seed >> 32])
        counter = positions[row : row + 1].long(), choices[row : row + 1].long(), *torch.zeros(2, 1, dtype=torch.int64)
        assert got[row] == philox(counter, key)[0] / 2**32


def test_uniform_is_spread_evenly() -> None:
    count = 1 << 16
    numbers = uniform(torch.full((count,), 77), torch.zeros(count, dtype=torch.int32), torch.arange(count).int())
    observed = np.bincount((numbers * 64).long().numpy(), minlength=64)
    statistic = ((observed - count / 64) ** 2 / (count / 64)).sum()
    assert statistic < 120  # chi-square with 63 degrees of freedom: 1 in 10**5 above
    assert abs(float(torch.corrcoef(torch.stack((numbers[1:], numbers[:-1])))[0, 1])) < 0.02
