"""Calls to one engine replica by its name, past Serve's router, which forgets a replica as soon as
it is to leave. Serve counts such a call like its own, and ends no replica that has one open.
"""

import asyncio
import pickle
import secrets
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.serve._private.common import RequestMetadata

from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.serve_status import SERVE_NAMESPACE


def find_replica(name: str) -> ActorHandle:
    """Asks Ray, which takes a while. Raises ValueError if it is not there."""
    return ray.get_actor(name, namespace=SERVE_NAMESPACE)


async def connect_replica(name: str, gateway: GatewayAddress) -> None:
    """Have it connect to the gateway. Raises RayError, or ValueError if it is not there."""
    await call_replica(await asyncio.to_thread(find_replica, name), "connect", gateway)


def call_replica(replica: ActorHandle, method: str, *args: Any) -> ObjectRef[Any]:
    """What `EngineDeployment` returns from its method."""
    call_id = secrets.token_hex(16)
    metadata = RequestMetadata(call_id, call_id, call_method=method)
    call: ObjectRef[Any] = replica.handle_request.remote(pickle.dumps(metadata), *args)
    return call
