"""Numbers with a unit: 4GiB, 1k."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKmMgGtT]?)(i?B|)")
_EXAMPLE = "4096, 4k (4000), 4K (4096), 1.5GiB or 2GB"


def parse_size(value: Any) -> Any:
    """The number that a text such as "4GiB" means; other values are returned unchanged. Raises
    ValueError.

    k, m, g and t, and kB, MB, GB and TB are powers of 1,000; K, M, G and T, and KiB to TiB of
    1,024.
    """
    if not isinstance(value, str):
        return value
    match = _NUMBER.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size, as in {_EXAMPLE}")
    number, letter, suffix = match.groups()
    is_decimal = suffix == "B" or (suffix == "" and letter.islower())
    factor = (1000 if is_decimal else 1024) ** " kmgt".index(letter.lower() or " ")
    size = float(number) * factor if "." in number else int(number) * factor
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes or tokens")
    return int(size)


Size = Annotated[int, BeforeValidator(parse_size)]  # of bytes or tokens
