"""Constructs a gateway's parts and connects them."""

import gc
from typing import Any, NamedTuple

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from cluster.gateway.http import Http
from cluster.gateway.options import GatewayOptions
from cluster.gateway.served import Served
from cluster.gateway.stores import Stores
from cluster.owner import Owner
from cluster.replica.serve_process import enter_replica


class Parts(NamedTuple):
    """Of a gateway in a Serve replica."""

    http: Http
    served: Served
    stores: Stores
    inner_app: FastAPI  # the API's routes, for callers by handle

    def make_app(self) -> FastAPI:
        """What answers over HTTP."""
        app = self.http.make_app(
            self.served.gateway,
            self.served.model,
            streams=self.stores.streams,
            kept=self.stores.responses,
            counters=self.served.observers.figures.counters,
            batches=self.stores.batches,
            loader=self.served.loading,
        )
        # A collection that looks through all modules, too, holds every stream up for a tenth of a
        # second.
        gc.collect()
        gc.freeze()
        return app


async def start_parts(engines: DeploymentHandle[Any], owner: Owner, options: GatewayOptions) -> Parts:
    """Wait for an engine, and accept requests from then on. Raises as `Http.check`."""
    process = enter_replica()
    http = Http(options.http, options.patience)
    await http.check()
    served = await Served.make(engines, owner, options, process)
    stores = Stores.configured(options, engines.app_name)
    inner_app = http.make_inner_app(served.gateway, served.model, kept=stores.responses)
    await http.start()
    await served.start()
    return Parts(http, served, stores, inner_app)
