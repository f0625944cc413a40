"""A model of the application, as one gateway serves it."""

from typing import Any, NamedTuple

import ray
from ray.serve.handle import DeploymentHandle

from cluster.api.adapters import Adapters
from cluster.api.model import Model
from cluster.gateway.adapters.loading import AdapterLoading
from cluster.gateway.adapters.store import RayAdapterStore
from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.options import GatewayOptions
from cluster.gateway.peers import PeerGateway
from cluster.owner import Owner


class Served(NamedTuple):
    model: Model
    gateway: PeerGateway
    observers: Observers
    loading: AdapterLoading | None  # of adapters, if any may be

    @classmethod
    async def make(
        cls, engines: DeploymentHandle[Any], owner: Owner, options: GatewayOptions, process: str
    ) -> "Served":
        """Once there is an engine. `process`: see `Observers.configured`."""
        replicas = ServeEngines(engines)
        adapters = Adapters(options.lora.given)
        model = Model(name=options.model_name, adapters=adapters, **await replicas.model_info())
        observers = Observers.configured(options.model_name, model.max_model_len, options.telemetry, process)
        gateway = PeerGateway(
            replicas,
            max_attempts=options.max_attempts,
            patience=options.patience,
            max_queue_seconds=options.max_queue_seconds,
            observers=observers,
        )
        loading = None
        if options.lora.loadable is not None:
            store = RayAdapterStore(engines.app_name, owner, model.name)
            loading = AdapterLoading(
                adapters, options.lora.loadable, store, gateway.try_adapter, gateway.look_for_adapters
            )
        return cls(model, gateway, observers, loading)

    async def start(self) -> None:
        """Take requests from then on."""
        await self.gateway.start(ray.util.get_node_ip_address())
        if self.loading is not None:
            await self.loading.look()
            self.gateway.spawn(self.loading.keep_looking())
