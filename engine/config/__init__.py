"""The configuration: read once, frozen; unknown keys are rejected, naming the nearest known one."""

from engine.config.engine import EngineConfig
from engine.config.explaining import ABSENT, explain, instead_of
from engine.config.fields import (
    DEFAULT_CPU_CACHE_BYTES,
    LEAST_GIB,
    MOST_HOST_GIB,
    MOST_PROMPT,
    STORES_A_STEP,
    Transport,
    default_cpu_blocks,
)
from engine.config.kv_events import KVEventsConfig
from engine.config.names import HUB_SCHEME, is_hub_name, local_path, remote_name
from engine.config.speculation import SpeculativeConfig

__all__ = [
    "ABSENT",
    "DEFAULT_CPU_CACHE_BYTES",
    "HUB_SCHEME",
    "LEAST_GIB",
    "MOST_HOST_GIB",
    "MOST_PROMPT",
    "STORES_A_STEP",
    "EngineConfig",
    "KVEventsConfig",
    "SpeculativeConfig",
    "Transport",
    "default_cpu_blocks",
    "explain",
    "instead_of",
    "is_hub_name",
    "local_path",
    "remote_name",
]
