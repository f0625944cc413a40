"""All models of the application, as one gateway replica serves them."""

import asyncio
from collections.abc import Sequence
from functools import partial

import ray

from cluster.api.models.model import Models
from cluster.gateway.models.joining import Joining
from cluster.gateway.models.peers import PeerGateways
from cluster.gateway.models.served import Served
from cluster.gateway.options import GatewayOptions
from cluster.gateway.prefill.spare_engines import ModelEngines
from cluster.head import runs
from cluster.owner import Owner

SETTLE_SECONDS = 10.0  # after the first model's engine, in which those of the others may be there, too


class ServedApplication:
    """Those that have an engine; the others join as they get their first one."""

    def __init__(self, there: Sequence[Served], later: Sequence[Joining], options: GatewayOptions) -> None:
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
        joinings = [
            Joining(partial(Served.make, handles, run, own, options, process))
            for handles, own in zip(engines, options.models, strict=True)
        ]
        _, later = await asyncio.wait([each.making for each in joinings], return_when=asyncio.FIRST_COMPLETED)
        if later:
            _, later = await asyncio.wait(later, timeout=SETTLE_SECONDS)
        there = [each.making.result() for each in joinings if each.making not in later]
        there[0].gateway.spawn(runs.keep(app_name, run))
        return cls(there, [each for each in joinings if each.making in later], options)

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
        for joining in asyncio.as_completed([each.served() for each in self._later]):
            self._add(await joining)
        self._all_there.set()

    def _add(self, served: Served) -> None:
        self.served.append(served)
        loadings = [each.loading for each in self.served if each.loading is not None]
        for loading in loadings:
            loading.beside(loadings)
        self.gateways.add(served.gateway)
        self.models.add(served.to_requests)
