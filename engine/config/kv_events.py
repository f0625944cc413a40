"""What routers are told of the cache: `kv_events_config`."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MOST_MESSAGES = (1 << 31) - 2  # ZeroMQ counts them in 32 bits, and one more ends a replay
_ENDPOINT = re.compile(r"tcp://\S+:(\*|[0-9]{1,5})|(ipc|inproc)://[^\0]+")


def _as_endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if found is None or int((found[1] or "*").replace("*", "0")) >= 1 << 16:
        raise ValueError("is not tcp://HOST:PORT, with a port of 65535 at most or *, ipc://PATH or inproc://NAME")
    return text


Endpoint = Annotated[str, AfterValidator(_as_endpoint)]  # of ZeroMQ


class KVEventsConfig(BaseModel):
    """What routers are told of an engine's cache; names are vLLM's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    # Of the first engine of a machine; the next ones take the next ports.
    endpoint: Endpoint = "tcp://127.0.0.1:5557"
    replay_endpoint: Endpoint | None = None  # where missed messages can be asked again
    buffer_steps: int = Field(10_000, ge=1, le=MOST_MESSAGES)  # messages that are kept for that
    hwm: int = Field(100_000, ge=1, le=MOST_MESSAGES)  # messages that wait for a slow subscriber, before it loses some
    max_queue_size: int = Field(100_000, ge=1)  # messages that wait to be sent, before some are dropped
    topic: str = ""
