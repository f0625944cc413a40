"""A gateway's access to what the application stores for clients."""

import importlib
from dataclasses import dataclass
from typing import Any, Self

from cluster.api.service import Batches
from cluster.gateway.options import GatewayOptions
from cluster.gateway.streams.response_store import ResponseStoreClient
from cluster.gateway.streams.shard import end_store
from cluster.gateway.streams.stream_store import StreamStoreClient
from cluster.head import runs
from cluster.weights.groups.receivers import end_receivers


@dataclass(frozen=True, slots=True)
class Stores:
    """The configured stores; None for those that the configuration does not enable."""

    streams: StreamStoreClient | None
    responses: ResponseStoreClient | None
    batches: Batches | None  # with the files that they are made of

    @classmethod
    def configured(cls, options: GatewayOptions, app_name: str) -> Self:
        num_shards, seconds = options.num_store_shards, options.stored_response_seconds
        return cls(
            StreamStoreClient(app_name, num_shards) if options.stream_resume else None,
            ResponseStoreClient(app_name, num_shards, seconds) if seconds else None,
            _open_batches(options.files_path, app_name),
        )


def begin_anew(app_name: str) -> None:
    """Let the next deploy be an application without a past. For one of which nothing runs."""
    runs.end(app_name)


def end_actors(app_name: str) -> None:
    """Those that outlive an application's gateways: its store's, and those that hold weights."""
    end_store(app_name)
    end_receivers(app_name)
    begin_anew(app_name)


def _open_batches(files_path: str | None, app_name: str) -> Batches | None:
    """The store of files and batches, which also runs batches; its modules are imported only if it
    is used.
    """
    if files_path is None:
        return None
    batches: Any = importlib.import_module("cluster.batch.batches")
    made: Batches = batches.ServedStore(files_path, app_name)
    return made
