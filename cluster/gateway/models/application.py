"""All models of the application, as one gateway replica serves them."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray.serve.handle import DeploymentHandle

from cluster.api.models.model import Models
from cluster.gateway.models.peers import PeerGateways
from cluster.gateway.models.served import Served
from cluster.gateway.options import GatewayOptions
from cluster.owner import Owner


class ServedApplication(NamedTuple):
    served: tuple[Served, ...]
    gateways: PeerGateways  # of all of these
    models: Models

    @classmethod
    async def make(
        cls, engines: Sequence[DeploymentHandle[Any]], owner: Owner, options: GatewayOptions, process: str
    ) -> "ServedApplication":
        """Once there is an engine of each model. `engines`: in the order of `options.models`;
        `process`: see `Observers.configured`.
        """
        making = (
            Served.make(handle, owner, own, options, process)
            for handle, own in zip(engines, options.models, strict=True)
        )
        served = tuple(await asyncio.gather(*making))
        gateways = PeerGateways([each.gateway for each in served])
        return cls(served, gateways, Models([each.to_requests for each in served], options.aliases))

    async def start(self) -> None:
        """Take requests from then on."""
        for each in self.served:
            await each.start(ray.util.get_node_ip_address())
        self.gateways.start()

    async def look_for_adapters(self) -> None:
        """See `AdapterLoading.look`."""
        for each in self.served:
            if each.loading is not None:
                await each.loading.look()
