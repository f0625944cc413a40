"""A trainer that broadcasts weights, as a program without any of our packages does."""

import contextlib
import hashlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ray import serve
from torch import Tensor

SECONDS = 300.0
HOST = "127.0.0.1"


class Trainer:
    """Rank 0 of a group with the running application."""

    def __init__(self, name: str = "weights") -> None:
        self.name = name
        self._store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        told = call("init_weights_update_group", master_address=HOST, master_port=self._store.port, group_name=name)
        assert told["error"] is None
        self.size: int = told["world_size"]
        prefix = dist.PrefixStore(name, self._store)
        self._group: Any = dist.ProcessGroupGloo(prefix, 0, self.size, timedelta(seconds=SECONDS))

    def update(self, tensors: dict[str, Tensor], told: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The answer, once all of `tensors` are broadcast, or as far as anybody receives them."""
        request = {"group_name": self.name, "tensors": told} | more
        asked = serve.get_app_handle("squadron").update_weights.remote(request)
        with contextlib.suppress(RuntimeError):  # the group was closed
            for tensor in tensors.values():
                self._group.broadcast(tensor, 0).wait()
        answer: dict[str, Any] = asked.result(timeout_s=SECONDS)
        return answer


def call(method: str, **request: Any) -> dict[str, Any]:
    """A method of the application's handle."""
    told: dict[str, Any] = getattr(serve.get_app_handle("squadron"), method).remote(request).result(timeout_s=SECONDS)
    return told


def described(tensors: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """As `update_weights` is told of them."""
    return {
        name: {
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest(),
        }
        for name, tensor in tensors.items()
    }
