"""Who is told of a cache's changes; ZeroMQ is imported only where it is used."""

import importlib
import importlib.util
from typing import Any, Protocol

from engine.config import KVEventsConfig
from engine.errors import InvalidConfig
from engine.kv_events.events import Event


class Publisher(Protocol):
    def publish(self, events: list[Event]) -> None:
        """Never blocks."""

    def close(self) -> None:
        """Idempotent."""


def make_publisher(config: KVEventsConfig | None) -> Publisher | None:
    """None if nobody is to be told. Raises InvalidConfig."""
    if config is None or not config.enable_kv_cache_events or config.publisher == "null":
        return None
    if importlib.util.find_spec("zmq") is None:
        raise InvalidConfig("kv_events_config needs the package pyzmq: pip install 'squadron-serve[kv-events]'")
    module: Any = importlib.import_module("engine.kv_events.zmq_publisher")
    publisher: Publisher = module.ZmqPublisher(config)
    return publisher
