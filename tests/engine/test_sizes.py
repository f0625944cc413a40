"""Numbers with units."""

import pytest

from engine.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("1K", 1024),
        ("2kB", 2000),
        ("2KB", 2000),
        ("2KiB", 2048),
        ("1.5GiB", 3 << 29),
        ("1.5 GB", 1_500_000_000),
        ("3M", 3 << 20),
        ("3m", 3_000_000),
        ("1TiB", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.3", "1.0001kB5", "4Gx", "1e3", "1,000", "0x10", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size, as in|is not a whole number"):
        parse_size(text)


@pytest.mark.parametrize("value", [7, 1.5, None, [1]])
def test_values_that_are_no_texts_stay_what_they_are(value: object) -> None:
    assert parse_size(value) is value
