"""First calls of functions that torch has MKL compute on the CPU: cosines, sines, exponentials.

At its first call of such a function MKL looks for the code of this processor. Where several threads
call it at once, as torch's own do for a tensor of some thousand numbers, one of them may compute
its share by other code, which is right to four digits. On a busy machine one process in a thousand
does: https://github.com/pytorch/pytorch/issues/188792.
"""

import threading
from collections.abc import Callable

import torch
from torch import Tensor

_calling = threading.Lock()


def call_first(*functions: Callable[[Tensor], Tensor]) -> None:
    """Return when each of them has been called for float32 by one thread alone: from then on, its
    results are the same in every process.
    """
    with _calling:
        for function in functions:
            function(torch.ones(1))
