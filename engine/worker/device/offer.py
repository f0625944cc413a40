"""The backends and levels that this process supports, and those that the ranks have agreed on."""

import ops
from engine.checkpoint.fingerprint import Offer
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.device.pick import pick_device


def offer(config: EngineConfig) -> Offer:
    """Raises InvalidConfig."""
    device = pick_device(config.device).torch_device
    try:
        backend = ops.select(config.ops_backend, device, config.quantization, exact=config.exact)
        fastest = ops.FASTEST.get(device.type, "reference")
        is_fastest = config.ops_backend != "auto" or backend.NAME.startswith(fastest)
        reason = None if is_fastest else ops.unavailable_reason(fastest, device)
        return Offer(backend.NAME, ops.levels(backend, device), reason)
    except ops.UnavailableBackend as error:
        raise InvalidConfig(str(error)) from None


def use(level: str) -> None:
    """Compute at this level, of those that were offered. Raises InvalidConfig."""
    try:
        ops.use_level(level)
    except ops.UnavailableBackend as error:
        raise InvalidConfig(f"the ranks' common instruction set cannot be used here: {error}") from None
