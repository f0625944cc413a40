"""A model of the application, as one gateway serves it."""

from typing import Any, NamedTuple

import ray
from ray.serve.handle import DeploymentHandle

from cluster.api.model import Model
from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.options import GatewayOptions
from cluster.gateway.peers import PeerGateway


class Served(NamedTuple):
    model: Model
    gateway: PeerGateway
    observers: Observers

    @classmethod
    async def make(cls, engines: DeploymentHandle[Any], options: GatewayOptions, process: str) -> "Served":
        """Once there is an engine. `process`: see `Observers.configured`."""
        replicas = ServeEngines(engines)
        model = Model(name=options.model_name, **await replicas.model_info())
        observers = Observers.configured(options.model_name, model.max_model_len, options.telemetry, process)
        gateway = PeerGateway(
            replicas,
            max_attempts=options.max_attempts,
            patience=options.patience,
            max_queue_seconds=options.max_queue_seconds,
            observers=observers,
        )
        return cls(model, gateway, observers)

    async def start(self) -> None:
        """Take requests from then on."""
        await self.gateway.start(ray.util.get_node_ip_address())
