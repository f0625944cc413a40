"""What a block's file is called, and what is in it: MAGIC, a digest, the block's bytes.

A rank's file is <arithmetic>-tp<size>pp<size>/<first byte>/<content hash>.<rank>.
"""

import hashlib
import re

MAGIC = b"SQDRKV01"
DIGEST_BYTES = 32
HEADER_BYTES = len(MAGIC) + DIGEST_BYTES
_NAME = re.compile(r"fp_[0-9a-f]+-tp[0-9]+pp[0-9]+/[0-9a-f]{2}/[0-9a-f]{32}\.[0-9]+")
_UNFINISHED = re.compile(_NAME.pattern + r"\.[^/]+\.tmp")


def file_name(layout: str, content: bytes, rank: int) -> str:
    text = content.hex()
    return f"{layout}/{text[:2]}/{text}.{rank}"


def is_block(name: str) -> bool:
    """Of any layout and rank, and whole."""
    return _NAME.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether it is such a file as long as it is written."""
    return _UNFINISHED.fullmatch(name) is not None


def block_of(name: str, layout: str) -> tuple[bytes, int] | None:
    """The content and the rank of a file, if it is a block of this layout."""
    text, _, suffix = name.rpartition("/")[2].partition(".")
    try:
        content, rank = bytes.fromhex(text), int(suffix)
    except ValueError:
        return None
    return (content, rank) if name == file_name(layout, content, rank) else None


def sealed(name: str, data: bytes) -> bytes:
    """The file of a block."""
    return MAGIC + _digest(name, data) + data


def unsealed(name: str, found: bytes | bytearray, num_bytes: int) -> bytes | None:
    """The block in a file; None if it is not exactly the one that was written, of so many bytes."""
    data = bytes(memoryview(found)[HEADER_BYTES:])
    is_whole = len(data) == num_bytes and found[:HEADER_BYTES] == MAGIC + _digest(name, data)
    return data if is_whole else None


def _digest(name: str, data: bytes) -> bytes:
    """Of the bytes under their name: a file that was renamed is damaged."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=hashlib.sha256(name.encode()).digest()).digest()
