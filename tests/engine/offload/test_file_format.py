"""Names of blocks' files, and what is in them."""

import pytest

from engine.offload.file_format import block_of, file_name, is_block, is_unfinished, sealed, unsealed

CONTENT, LAYOUT, DATA = bytes(range(16)), "fp_1-tp1pp1", bytes(range(256)) * 9
NAME = file_name(LAYOUT, CONTENT, 3)


def test_which_block_a_name_is_of() -> None:
    assert block_of(NAME, LAYOUT) == (CONTENT, 3)
    for wrong in (f"{NAME}.node.1.2.tmp", NAME.replace("00/", "01/"), "README", f"{LAYOUT}/zz/zz.3", f"{NAME}x"):
        assert block_of(wrong, LAYOUT) is None
    assert block_of(NAME, "fp_2") is None


def test_which_names_are_of_blocks() -> None:
    assert is_block(NAME) and not is_unfinished(NAME)
    assert is_unfinished(f"{NAME}.node.1.2.tmp") and not is_block(f"{NAME}.node.1.2.tmp")
    for other in ("lock", f"../{NAME}", f"{NAME}/x.tmp", f"{NAME}\n", f"/{NAME}", f"{NAME}.tmp", f"x\n{NAME}"):
        assert not is_block(other) and not is_unfinished(other), other


@pytest.mark.parametrize("at", [0, 8, 39, 40, -1])
def test_a_bit_that_changes_is_seen_and_so_is_another_name_or_length(at: int) -> None:
    file = bytearray(sealed(NAME, DATA))
    assert unsealed(NAME, file, len(DATA)) == DATA
    assert unsealed(NAME, file, len(DATA) - 1) is unsealed(f"{NAME}0", file, len(DATA)) is None
    assert unsealed(NAME, file[:-1], len(DATA) - 1) is unsealed(NAME, b"", len(DATA)) is None
    file[at] ^= 1
    assert unsealed(NAME, file, len(DATA)) is None
