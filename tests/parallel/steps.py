"""Runs a stage of a model over batches of rows of some sequences, the way a worker does."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ops.interface import AttentionMetadata
from parallel.adapters.adapter import StepAdapters
from parallel.decoder import Decoder

BLOCK = 16
BLOCKS_EACH = 8  # per sequence


@dataclass
class Runner:
    """One rank. Each sequence has BLOCKS_EACH blocks of its own, dealt out at random; cells nobody
    wrote to are NaN.
    """

    model: Decoder
    num_sequences: int
    caches: list[tuple[Tensor, Tensor]] = field(init=False)
    tables: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        num_blocks = 1 + self.num_sequences * BLOCKS_EACH
        shape = (num_blocks, self.model.num_kv_heads, BLOCK, self.model.head_dim)
        dtype, device = self.model.dtype, self.model.device
        self.caches = [
            (
                torch.full(shape, torch.nan, dtype=dtype, device=device),
                torch.full(shape, torch.nan, dtype=dtype, device=device),
            )
            for _ in range(self.model.num_layers)
        ]
        blocks = 1 + torch.randperm(num_blocks - 1, generator=generator)
        self.tables = blocks.view(self.num_sequences, BLOCKS_EACH).int()

    def step(self, rows: dict[int, tuple[int, list[int]]], adapters: StepAdapters | None = None) -> Tensor | None:
        """rows: sequence -> (how many tokens were computed before, the next ones). Returns logits
        [T, V] on the last stage.
        """
        ids = [token for _, tokens in rows.values() for token in tokens]
        spans = [(sequence, start, start + len(tokens)) for sequence, (start, tokens) in rows.items()]
        positions = torch.cat([torch.arange(start, end) for _, start, end in spans])
        tables = self.tables[[sequence for sequence, _, _ in spans]]
        owners = torch.tensor([index for index, (_, start, end) in enumerate(spans) for _ in range(start, end)])
        lengths = torch.tensor([end - start for _, start, end in spans])
        device = self.model.device
        metadata = AttentionMetadata(
            query_starts=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int().to(device),
            context_lens=torch.tensor([end for _, _, end in spans], dtype=torch.int32, device=device),
            block_tables=tables.to(device),
            slot_mapping=(tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK).int().to(device),
            max_query_len=int(lengths.max()),
            max_context_len=max(end for _, _, end in spans),
        )
        stage = self.model.stage
        input_ids = torch.tensor(ids, dtype=torch.int32, device=device) if stage.is_first else None
        hidden = self.model.config.layer.hidden_size
        received = None if stage.is_first else stage.recv(len(ids), hidden, self.model.dtype)
        result = self.model.forward(input_ids, received, positions.int().to(device), self.caches, metadata, adapters)
        if stage.is_last:
            return self.model.logits(result)
        stage.send(result)
        return None
