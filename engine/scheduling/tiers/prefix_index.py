"""Finds blocks by what they hold, in every tier."""

import hashlib
import time
from collections.abc import Iterator

import numpy as np

from engine.kv_events.changes import Changes
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.tiers.shelf import Shelf

SEEK_SECONDS = 30.0  # that a request waits at most for what the third tier has of it; then the rest is computed


class PrefixIndex:
    """Of full blocks, each found by a hash of all tokens up to its end, and of the salt."""

    def __init__(
        self, block_size: int, device: BlockPool, host: BlockPool, shelf: Shelf | None, changes: Changes | None
    ) -> None:
        """`changes`: gets what is entered, if anybody wants to know."""
        self.block_size = block_size
        self._device = device
        self._host = host
        self.shelf = shelf  # while anything may be in it
        self._changes = changes

    def on_device(self, seq: Sequence, salt: bytes) -> list[int]:
        """The blocks that hold the sequence's first tokens, all but the last at most."""
        return self._found(self._device, seq, salt, 0)

    def on_host(self, seq: Sequence, salt: bytes, first: int) -> list[int]:
        """Host blocks that hold what follows its `first` blocks."""
        return self._found(self._host, seq, salt, first)

    def enter(self, seq: Sequence, index: int, salt: bytes, lora_name: str | None = None) -> bool:
        """Have a full block of the sequence's found, unless an equal one is; whether it is now."""
        if not self._device.register(seq.block_table[index], self.hash_of(seq, index, salt)):
            return False
        if self._changes is not None:
            start = index * self.block_size
            parent = seq.block_hashes[index - 1] if index else None
            token_ids = seq.token_ids[start : start + self.block_size]
            self._changes.stored(seq.block_hashes[index], parent, token_ids, salt, lora_name)
        return True

    def expect(self, seq: Sequence, num_tokens: int, salt: bytes | None, address: str | None) -> None:
        """Another engine has computed so many of its tokens: the third tier may have all full
        blocks of them, or that engine, if it serves them at `address`.
        """
        if self.shelf is not None and salt is not None:
            num_full = (num_tokens - 1) // self.block_size
            self.shelf.expect((self.hash_of(seq, index, salt) for index in range(num_full)), address)

    def contents_of(self, seq: Sequence) -> Iterator[bytes]:
        """Of its full blocks, as far as the device or the host has them one after the other."""
        for content in seq.block_hashes:
            if self._device.lookup(content) is None and self._host.lookup(content) is None:
                return
            yield content

    def fetch(self, seq: Sequence, salt: bytes | None) -> bool:
        """Have what the third tier has of a waiting sequence brought to the host; False if there is
        nothing to wait for. Of a sequence longer than the host only as much comes as that holds,
        and nothing comes twice: what is brought may take the place of what was.
        """
        if self.shelf is None or salt is None or _has_waited(seq):
            return False
        is_fetching, num_on_host = False, 0
        for index in range((len(seq.token_ids) - 1) // self.block_size):
            content = self.hash_of(seq, index, salt)
            slot = self._host.lookup(content)
            if slot is None and self._device.lookup(content) is not None:
                continue
            num_on_host += 1
            if slot is not None:  # what will be loaded with it must not take its place
                self._host.share(slot)
                self._host.release(slot)
            elif num_on_host > self._host.num_usable:
                break
            elif self._seek(self.shelf, seq, index):
                is_fetching = True
            else:
                is_fetching |= index >= seq.num_sought_blocks and self.shelf.may_fetch_later(content)
                break
        if is_fetching and seq.sought_since is None:
            seq.sought_since = time.monotonic()
        return is_fetching

    def distrust(self, group: SequenceGroup) -> None:
        """Remove what the group's sequences wrote or read, whoever holds it now: the numbers are
        wrong.
        """
        for seq in group.seqs:
            for content in seq.block_hashes:
                self._device.forget(content)
                self._host.forget(content)
                if self.shelf is not None:
                    self.shelf.distrust(content)

    def hash_of(self, seq: Sequence, index: int, salt: bytes) -> bytes:
        """Content hash of the sequence's block `index`, chained over all before it; block 0's
        parent is the salt.
        """
        while len(seq.block_hashes) <= index:
            start = len(seq.block_hashes) * self.block_size
            parent = seq.block_hashes[-1] if seq.block_hashes else salt
            tokens = np.array(seq.token_ids[start : start + self.block_size], np.int32).tobytes()
            seq.block_hashes.append(hashlib.blake2b(tokens, digest_size=16, key=parent).digest())
        return seq.block_hashes[index]

    def _found(self, pool: BlockPool, seq: Sequence, salt: bytes, first: int) -> list[int]:
        found: list[int] = []
        for index in range(first, (len(seq.token_ids) - 1) // self.block_size):
            block = pool.lookup(self.hash_of(seq, index, salt))
            if block is None:
                break
            found.append(block)
        return found

    @staticmethod
    def _seek(shelf: Shelf, seq: Sequence, index: int) -> bool:
        """Whether the third tier's block is on its way to the host."""
        content = seq.block_hashes[index]
        if index < seq.num_sought_blocks:
            return shelf.is_fetching(content)
        if not shelf.fetch(content):
            return False
        seq.num_sought_blocks = index + 1
        return True


def _has_waited(seq: Sequence) -> bool:
    """For too long, for files that come one by one."""
    return seq.sought_since is not None and time.monotonic() - seq.sought_since > SEEK_SECONDS
