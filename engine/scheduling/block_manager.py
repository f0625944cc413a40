"""Block tables: admit, grow, copy-on-write, fork, swap, free. Block moves are collected for the
next step.
"""

from engine.config import STORES_A_STEP
from engine.executor import Capacity
from engine.kv_events.beginnings import Beginnings
from engine.kv_events.changes import Changes
from engine.kv_events.events import CPU, GPU
from engine.offload.known import Known
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.sequence import Sequence
from engine.scheduling.table_rows import TableRows
from engine.scheduling.tiers.host_tier import HostTier
from engine.scheduling.tiers.prefix_index import PrefixIndex
from engine.scheduling.tiers.shelf import Shelf

Moves = list[tuple[int, int]]  # (from, to)


class BlockManager:
    """Owns which block holds which positions of which sequence.

    Contents move only inside steps, and steps run in order, so a block may get a new owner while a
    step that still reads it is in flight. The moves for the next step are in three lists, which
    `take_moves` empties.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        known: Known | None = None,
        stores_a_step: int = STORES_A_STEP,
        changes: Changes | None = None,
        beginnings: Beginnings | None = None,
    ) -> None:
        """`known`: what the third tier's files are, if there is one, and `stores_a_step` what it
        gets, 0 for nothing; `changes`: gets those of the prefix index, and `beginnings` what
        is removed from it, if anybody wants to know.
        """
        self.block_size = block_size
        self.beginnings = Beginnings() if beginnings is None else beginnings
        self.device = BlockPool(capacity.num_gpu_blocks, 1, changes, GPU, self.beginnings)
        self.host = BlockPool(capacity.num_cpu_blocks, 0, changes, CPU, self.beginnings)
        self.shelf = None if known is None else Shelf(self.host, known, stores_a_step)
        self.last_shelf = self.shelf  # that one, or the last one that there was: its figures count
        self.host_tier = HostTier(self.device, self.host, self.shelf if stores_a_step else None, stores_a_step)
        self.prefixes = PrefixIndex(block_size, self.device, self.host, self.shelf, changes)
        self.rows = TableRows(max_num_seqs, self.num_blocks(max_model_len))
        self.max_blocks = min(self.num_blocks(max_model_len), self.device.num_usable)  # that one sequence may have
        self._swap_out: Moves = []
        self._swap_in: Moves = []
        self._copy: Moves = []
        self._read: list[int] = []  # host blocks that swaps in read: the same step's swaps out would come before
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_hits = 0  # tokens

    def count_on(self, before: "BlockManager") -> None:
        """These blocks take the place of others, whose counts go on: they are since the start."""
        self.num_prefix_queries, self.num_prefix_hits = before.num_prefix_queries, before.num_prefix_hits
        self.host_tier.num_queries, self.host_tier.num_hits = before.host_tier.num_queries, before.host_tier.num_hits

    def holds(self, content: bytes) -> bool:
        """Whether a tier has it."""
        return self.device.lookup(content) is not None or self.has_copy(content)

    def has_copy(self, content: bytes) -> bool:
        """Whether a tier behind the device has it."""
        return self.host.lookup(content) is not None or (self.shelf is not None and self.shelf.has(content))

    def open_shelf(self, seconds: float) -> None:
        """Have a third tier at least that long: as long as there is none, no step pays for it."""
        if self.last_shelf is None:
            self.last_shelf = Shelf(self.host, Known(), 0, seconds)
        self.last_shelf.want(seconds)
        self.shelf = self.prefixes.shelf = self.last_shelf

    def close_shelf(self) -> None:
        """Nothing is wanted of the third tier any more."""
        assert self.shelf is not None
        self.shelf.forget()
        self.shelf = self.prefixes.shelf = None

    def leave(self, seqs: list[Sequence], most_blocks: int, *, apart: bool) -> None:
        """The engine is to end: have the third tier get what the sequences have computed, so many
        blocks at most, and what is computed from now on. `apart`: see `Shelf.leave`.
        """
        contents = dict.fromkeys(content for seq in seqs for content in self.prefixes.contents_of(seq))
        self.open_shelf(float("inf"))
        assert self.shelf is not None
        self.host_tier.leave(list(contents)[:most_blocks], self.shelf, apart=apart)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(self, seq: Sequence, salt: bytes | None) -> None:
        """Give a sequence without blocks a row, and the blocks that the prefix index holds of it
        (none without a salt). A fully cached sequence still computes its last token, so its last
        block is computed again, into one of its own. What is found on the host gets blocks, which
        `load` fills.
        """
        assert not seq.block_table and seq.row is None and seq.num_computed_tokens == 0
        self.rows.enter(seq)
        seq.num_sought_blocks, seq.sought_since = 0, None
        if salt is None:
            return
        cached = self.prefixes.on_device(seq, salt)
        for block in cached:
            self.device.share(block)
            self.device.lives.found(block)
            self.rows.append(seq, block)
        for slot in self.prefixes.on_host(seq, salt, len(cached)):
            self.host.share(slot)
            seq.host_block_table.append(slot)
        for _ in seq.host_block_table:
            self.rows.append(seq, self.device.allocate())
        seq.has_found_blocks |= bool(seq.block_table)
        seq.num_indexed_blocks = len(cached)
        seq.num_computed_tokens = len(cached) * self.block_size
        self.num_prefix_queries += len(seq.token_ids)
        self.num_prefix_hits += seq.num_computed_tokens
        self.host_tier.num_queries += len(seq.token_ids) - seq.num_computed_tokens
        self.host_tier.num_hits += len(seq.host_block_table) * self.block_size

    def num_brought(self, seq: Sequence) -> int:
        """Of what was found on the host for it: blocks that the third tier has been read for."""
        return 0 if self.shelf is None else self.shelf.take_brought(seq.host_block_table)

    def load(self, seq: Sequence, salt: bytes | None, lora_name: str | None = None) -> None:
        """Bring what was found on the host to the device, as many blocks as the step being planned
        still moves; the steps after it may read them. Without a salt nobody else finds them.
        """
        room = max(self.host_tier.moves_a_step - len(self._swap_in), 0)
        for slot in seq.host_block_table[:room]:
            index = seq.num_computed_tokens // self.block_size
            self._swap_in.append((slot, seq.block_table[index]))
            self._read.append(slot)
            if salt is not None:
                self.prefixes.enter(seq, index, salt, lora_name)
            seq.num_computed_tokens += self.block_size
        del seq.host_block_table[:room]
        seq.num_indexed_blocks = seq.num_computed_tokens // self.block_size

    def num_blocks_to_admit(self, seq: Sequence, salt: bytes | None) -> int:
        """Free blocks that the whole sequence would take: those not cached, and cached ones that
        are free now.
        """
        cached = [] if salt is None else self.prefixes.on_device(seq, salt)
        return self.num_blocks(seq.num_tokens) - sum(not self.device.is_free(block) for block in cached)

    def reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Make positions num_computed_tokens..num_tokens - 1 writable: own the block written first,
        append the rest.

        Returns False and changes nothing if there are not enough free blocks; if `outgrows`, there
        never will be.
        """
        missing = -(-num_tokens // self.block_size) - len(seq.block_table)
        if missing <= 0 and not seq.may_share_tail:
            return True
        copies = seq.may_share_tail and self._writes_shared(seq)
        if max(missing, 0) + copies > self.device.num_free:
            return False
        if copies:
            self._copy_on_write(seq)
        for _ in range(missing):
            self.rows.append(seq, self.device.allocate())
        seq.may_share_tail = False
        return True

    def outgrows(self, num_tokens: int) -> bool:
        """Whether a sequence of that length exceeds the whole cache."""
        return self.num_blocks(num_tokens) > self.max_blocks

    def index_full_blocks(self, seq: Sequence, salt: bytes | None, lora_name: str | None = None) -> None:
        """Enter the blocks that are full, computed and known into the prefix index; none, without a
        salt.
        """
        num_full = min(seq.num_computed_tokens, len(seq.token_ids)) // self.block_size
        if salt is not None:
            for index in range(seq.num_indexed_blocks, num_full):
                if self.prefixes.enter(seq, index, salt, lora_name):
                    self.host_tier.written(seq.block_table[index], seq.block_hashes[index])
        seq.num_indexed_blocks = num_full

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child shares all of the parent's blocks, on device or host; the first to write into
        the last one copies it.
        """
        if parent.row is not None:
            self.rows.enter(child)
        for block in parent.block_table:
            self.device.share(block)
            self.rows.append(child, block)
        for block in parent.host_block_table:
            self.host.share(block)
            child.host_block_table.append(block)
        child.num_indexed_blocks = parent.num_indexed_blocks
        parent.may_share_tail = child.may_share_tail = True

    def free(self, seq: Sequence) -> None:
        """Free all blocks of the sequence; its last blocks are reused first."""
        for block in reversed(seq.block_table):
            self.device.release(block)
        for block in reversed(seq.host_block_table):
            self.host.release(block)
        seq.host_block_table.clear()
        self._leave_row(seq)

    def num_unique_blocks(self, seqs: list[Sequence]) -> int:
        if len(seqs) == 1:
            return len(seqs[0].block_table or seqs[0].host_block_table)
        return len({block for seq in seqs for block in seq.block_table or seq.host_block_table})

    def num_blocks_to_swap_in(self, seqs: list[Sequence], salt: bytes | None) -> int:
        """Free device blocks that swapped sequences need to be swapped in and compute one more
        token each.
        """
        kept = {
            host
            for seq in seqs
            for host, block in zip(seq.host_block_table, self._still_cached(seq, salt), strict=False)
            if not self.device.is_free(block)
        }
        needed = self.num_unique_blocks(seqs) - len(kept)
        written: set[int] = set()
        for seq in seqs:
            index = seq.num_computed_tokens // self.block_size
            if index >= len(seq.host_block_table):
                needed += 1
            elif seq.host_block_table[index] in written:
                needed += 1  # a shared last block: all but one of its writers copy it
            else:
                written.add(seq.host_block_table[index])
        return needed

    def swap_out(self, seqs: list[Sequence]) -> None:
        """Move the sequences' blocks to the host, each once however many of them share it, and none
        that is there already.
        """
        moved: dict[int, int] = {}
        for seq in seqs:
            self._stop_loading(seq)
            for block in seq.block_table:
                content = self.device.content_of(block)
                slot = moved.get(block) if content is None else self.host.lookup(content)
                if slot is None:
                    slot = moved[block] = self.host.allocate()
                    if content is not None:
                        self.host.register(slot, content)
                else:
                    self.host.share(slot)
                seq.host_block_table.append(slot)
        for seq in seqs:
            for block in reversed(seq.block_table):
                self.device.release(block)
            self._leave_row(seq)
        self._swap_out += moved.items()

    def swap_in(self, seqs: list[Sequence], salt: bytes | None) -> None:
        """Move the sequences' blocks back to the device, shared as before; blocks still in the
        prefix index are shared again.

        Raises OutOfBlocks.
        """
        moved: dict[int, int] = {}
        for seq in seqs:
            self.rows.enter(seq)
            cached = self._still_cached(seq, salt)
            seq.has_found_blocks |= bool(cached)
            for block in cached:
                self.device.share(block)
                self.rows.append(seq, block)
            for block in seq.host_block_table[len(cached) :]:
                if block in moved:
                    self.device.share(moved[block])
                else:
                    moved[block] = self.device.allocate()
                self.rows.append(seq, moved[block])
        for seq in seqs:
            self._read += reversed(seq.host_block_table)
            seq.host_block_table.clear()
        self._swap_in += moved.items()

    def take_moves(self, *, is_step: bool = False) -> tuple[Moves, Moves, Moves]:
        """The moves since the last call: swap out, swap in, copy. `is_step`: whether there is
        anything else in the step; blocks are saved beside others' work only.
        """
        moves = self._swap_out, self._swap_in, self._copy
        if is_step or any(moves):
            self._swap_out += self.host_tier.save()
        for slot in self._read:
            self.host.release(slot)
        self._swap_out, self._swap_in, self._copy, self._read = [], [], [], []
        return moves

    def _stop_loading(self, seq: Sequence) -> None:
        """Give up what is still on the host, and the blocks that it would have filled."""
        if not seq.host_block_table:
            return
        for slot in reversed(seq.host_block_table):
            self.host.release(slot)
        seq.host_block_table.clear()
        num_filled = seq.num_computed_tokens // self.block_size
        for block in reversed(seq.block_table[num_filled:]):
            self.device.release(block)
        self.rows.cut(seq, num_filled)

    def _still_cached(self, seq: Sequence, salt: bytes | None) -> list[int]:
        """The blocks in the prefix index that hold what a swapped sequence's full blocks do, as far
        as they are there.
        """
        num_full = seq.num_computed_tokens // self.block_size
        return [] if salt is None else self.prefixes.on_device(seq, salt)[:num_full]

    def _writes_shared(self, seq: Sequence) -> bool:
        """Whether the next write goes into a block that other sequences hold too. Cached blocks are
        full, so never written.
        """
        index = seq.num_computed_tokens // self.block_size
        return index < len(seq.block_table) and self.device.references(seq.block_table[index]) > 1

    def _copy_on_write(self, seq: Sequence) -> None:
        index = seq.num_computed_tokens // self.block_size
        old = seq.block_table[index]
        new = self.device.allocate()
        self._copy.append((old, new))
        self.device.release(old)
        self.rows.replace(seq, index, new)

    def _leave_row(self, seq: Sequence) -> None:
        self.rows.leave(seq)
        seq.num_indexed_blocks = seq.plain_until = 0
