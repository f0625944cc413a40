"""How a model's engines hand blocks to each other: who computes them and who reads them, where they
are on the way, and the secret by which engines on other nodes get them.

Each deploy is built in another process, as Serve does it, and its engines go on with what those of
the last one have left. So the secret is not the deploy's but the Ray cluster's.
"""

import secrets

import ray

from cluster import owner
from cluster.head import store
from engine.config import EngineConfig
from engine.offload.shared_folder import peer_secret, shared_folder

_KEY = b"secret"


def model_secret(model_name: str) -> str:
    """The same for all who ask in one cluster; this process's own, where that is none, or its head
    does not answer.
    """
    return peer_secret(f"{_cluster_secret()}/{model_name}")


def _cluster_secret() -> str:
    if ray.is_initialized():
        try:
            store.claim(_KEY, secrets.token_hex(32).encode())
            if (found := store.read(_KEY)) is not None:
                return found.decode()
        except store.NoRecord:
            pass
    return owner.this_process().token


def divided(engine: EngineConfig, memory: float, token: str, secret: str) -> tuple[EngineConfig, EngineConfig]:
    """The configuration of those that answer, and of those that compute prompts. Blocks go by way
    of `kv_offloading_path`, which both then use as ever, or else `memory` GiB of the node's shared
    memory, and by `kv_peer_transport` to other nodes; `token`: the application's own; `secret`: its
    engines' of this model, of any deploy.
    """
    if engine.kv_offloading_path is not None:
        return engine, engine.model_copy(update={"kv_role": "producer"})
    path = shared_folder(f"{token}/{engine.model_name}")
    common = {"kv_offloading_path": path, "kv_offloading_path_size": memory, "kv_peer_secret": secret}
    answering = engine.model_copy(update=common | {"kv_role": "consumer"})
    return answering, engine.model_copy(update=common | {"kv_role": "producer", "kv_leaving_size": 0.0})


def leaving(engine: EngineConfig, memory: float, secret: str) -> EngineConfig:
    """The configuration of engines that leave the blocks of their requests to others when they are
    told to end: `memory` GiB at most, none for 0, or where blocks cannot be moved. `secret`: see
    `divided`.
    """
    if not memory or not engine.moves_blocks:
        return engine
    return engine.model_copy(update={"kv_leaving_size": memory, "kv_peer_secret": secret})
