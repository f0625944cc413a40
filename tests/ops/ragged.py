"""Lists of a row each, as ops take them."""

import numpy as np
import torch
from torch import Tensor


def ragged(lists: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    starts = np.cumsum([0, *map(len, lists)])
    flat = [item for each in lists for item in each]
    return (
        torch.tensor(starts, dtype=torch.int32, device=device),
        torch.tensor(flat, dtype=torch.int32, device=device),
    )
