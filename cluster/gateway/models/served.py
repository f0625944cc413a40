"""A model of the application, as one gateway serves it."""

from typing import NamedTuple

from cluster.api.models.adapters import Adapters
from cluster.api.models.model import Model, ServedModel
from cluster.gateway.adapters.loading import LOOK_SECONDS, AdapterLoading
from cluster.gateway.adapters.store import RayAdapterStore
from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.gateway import Gateway
from cluster.gateway.models.peers import look_for_adapters
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.options import GatewayOptions, ModelOptions
from cluster.gateway.prefill.spare_engines import ModelEngines, prefill_engines


class Served(NamedTuple):
    model: Model
    gateway: Gateway
    observers: Observers
    loading: AdapterLoading | None  # of adapters, if any may be

    @classmethod
    async def make(
        cls,
        handles: ModelEngines,
        run: str,
        own: ModelOptions,
        options: GatewayOptions,
        process: str,
    ) -> "Served":
        """Once there is an engine. `run`: of the application; `own`: of this model; `process`: see
        `Observers.configured`.
        """
        engines, others = handles
        replicas = ServeEngines(engines, run, own.source)
        adapters = Adapters(own.lora.given)
        model = Model(name=own.name, adapters=adapters, **await replicas.model_info())
        observers = Observers.configured(
            own.name, model.max_model_len, options.telemetry, process, counts_process=own is options.models[0]
        )
        gateway = Gateway(
            replicas,
            max_attempts=options.max_attempts,
            patience=options.patience,
            max_queue_seconds=options.max_queue_seconds,
            observers=observers,
            prefill=prefill_engines(others, run, own),
            starts_for_requests=own.starts_for_requests,
        )
        loading = None
        if own.lora.loadable is not None:
            store = RayAdapterStore(engines.app_name, run, model.name, own.source)
            loading = AdapterLoading(
                adapters,
                own.lora.loadable,
                store,
                gateway.try_adapter,
                lambda: look_for_adapters(LOOK_SECONDS),  # one that is slower has looked by itself
            )
        return cls(model, gateway, observers, loading)

    @property
    def to_requests(self) -> ServedModel:
        """The same, as the API sees it."""
        return ServedModel(self.model, self.gateway, self.loading, self.gateway.changes)

    async def start(self, host: str) -> None:
        """Take requests from then on; engines send to `host`."""
        await self.gateway.start(host)
        if self.loading is not None:
            await self.loading.begin()
            self.gateway.spawn(self.loading.keep_looking())
