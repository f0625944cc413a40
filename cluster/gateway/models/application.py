"""All models of the application, as one gateway replica serves them."""

import asyncio
import logging
from collections.abc import Sequence

import ray

from cluster.api.models.model import Models
from cluster.gateway.models.peers import PeerGateways
from cluster.gateway.models.served import Served
from cluster.gateway.options import GatewayOptions
from cluster.gateway.prefill.spare_engines import ModelEngines
from cluster.head import runs
from cluster.owner import Owner
from engine.errors import going_on

logger = logging.getLogger("squadron.gateway")

SETTLE_SECONDS = 10.0  # after the first model's engine, in which those of the others may be there, too

Making = asyncio.Task[Served]


class ServedApplication:
    """Those that have an engine; the others join as they get their first one."""

    def __init__(self, there: Sequence[Served], later: Sequence[Making], options: GatewayOptions) -> None:
        self.served: list[Served] = []
        self.gateways = PeerGateways(names=[model.name for model in options.models])
        self.models = Models(
            names=[model.name for model in options.models],
            aliases=options.aliases,
            adapters={adapter.name: model.name for model in options.models for adapter in model.lora.given},
            can_load=any(model.lora.loadable is not None for model in options.models),
        )
        self._later = tuple(later)
        self._all_there = asyncio.Event()
        for each in there:
            self._add(each)

    @classmethod
    async def make(
        cls, engines: Sequence[ModelEngines], owner: Owner, options: GatewayOptions, process: str
    ) -> "ServedApplication":
        """Once there is an engine of one model, and had time to be of the others. `engines`: in the
        order of `options.models`; `owner`: of the deploy; `process`: see `Observers.configured`.
        Raises NoRecord.
        """
        app_name = engines[0][0].app_name
        run = await asyncio.to_thread(runs.run_of, app_name, owner.token)
        makings = [
            asyncio.create_task(Served.make(handles, run, own, options, process))
            for handles, own in zip(engines, options.models, strict=True)
        ]
        _, later = await asyncio.wait(makings, return_when=asyncio.FIRST_COMPLETED)
        if later:
            _, later = await asyncio.wait(later, timeout=SETTLE_SECONDS)
        there = [making.result() for making in makings if making not in later]
        there[0].gateway.spawn(runs.keep(app_name, run))
        return cls(there, [making for making in makings if making in later], options)

    async def start(self) -> None:
        """Take requests from then on."""
        for each in self.served:
            await each.start(ray.util.get_node_ip_address())
        self.gateways.start()
        self.served[0].gateway.spawn(self._join())

    async def wait_for_all(self) -> None:
        """Until each model has had an engine."""
        await self._all_there.wait()

    async def look_for_adapters(self) -> None:
        """See `AdapterLoading.look`."""
        for each in self.served:
            if each.loading is not None:
                await each.loading.look()

    async def _join(self) -> None:
        num_all = len(self.served) + len(self._later)
        for making in asyncio.as_completed(self._later):
            with going_on(logger, "the joining of a model"):
                served = await making
                await served.start(ray.util.get_node_ip_address())
                self._add(served)
        if len(self.served) == num_all:
            self._all_there.set()

    def _add(self, served: Served) -> None:
        self.served.append(served)
        loadings = [each.loading for each in self.served if each.loading is not None]
        for loading in loadings:
            loading.beside(loadings)
        self.gateways.add(served.gateway)
        self.models.add(served.to_requests)
