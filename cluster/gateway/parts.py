"""Constructs a gateway's parts and connects them."""

from collections.abc import Sequence
from typing import NamedTuple

from fastapi import FastAPI

from cluster.gateway.demonstration import DemoKiller
from cluster.gateway.http import Http
from cluster.gateway.models.application import ServedApplication
from cluster.gateway.options import GatewayOptions
from cluster.gateway.prefill.spare_engines import ModelEngines
from cluster.gateway.stores import Stores
from cluster.owner import Owner
from cluster.replica.serve_process import enter_replica
from engine.frontend.garbage import COLLECTOR


class Parts(NamedTuple):
    """Of a gateway in a Serve replica."""

    http: Http
    application: ServedApplication
    stores: Stores
    inner_app: FastAPI  # the API's routes, for callers by handle
    killer: DemoKiller | None

    def make_app(self) -> FastAPI:
        """What answers over HTTP. Its answers are counted in the figures of the first model that is
        there, under the name of the one that is asked for.
        """
        app = self.http.make_app(
            self.application.gateways,
            self.application.models,
            streams=self.stores.streams,
            kept=self.stores.responses,
            counters=self.application.served[0].observers.figures.counters,
            batches=self.stores.batches,
            killer=self.killer,
        )
        # A collection that looks through all modules, too, holds every stream up for a tenth of a
        # second; one for every few requests costs them a tenth of their processor time.
        COLLECTOR.slow_down()
        return app


async def start_parts(engines: Sequence[ModelEngines], owner: Owner, options: GatewayOptions) -> Parts:
    """Wait for an engine (see `ServedApplication.make`), and accept requests from then on.
    `engines`: in the order of `options.models`. Raises as `Http.check`, and NoRecord.
    """
    process = enter_replica()
    http = Http(options.http, options.patience)
    await http.check()
    application = await ServedApplication.make(engines, owner, options, process)
    stores = Stores.configured(options, engines[0][0].app_name)
    inner_app = http.make_inner_app(application.gateways, application.models, kept=stores.responses)
    await http.start()
    await application.start()
    killer = DemoKiller(application.gateways) if options.kills_workers else None
    return Parts(http, application, stores, inner_app, killer)
