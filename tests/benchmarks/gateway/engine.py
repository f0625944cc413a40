"""The scripted engine: a token a step for every stream, over the delta channel.

    python -m tests.benchmarks.gateway.engine --streams N --tokens N

Prints its two ports: where a gateway sends its requests, and where the clients ask for a step.
"""

import argparse
import asyncio
import json
import sys

import msgspec

from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import GatewayAddress, read_frame
from cluster.sockets import LOOPBACK
from engine.outputs import CompletionOutput, RequestOutput

TEXT = "zz"  # of every token: occurs nowhere else in an event
MAX_ORDER_BYTES = 1 << 20


class Order(msgspec.Struct, array_like=True):
    """A request that a gateway has put."""

    gateway: GatewayAddress
    request_id: str


class ScriptedEngine:
    def __init__(self, num_streams: int, num_tokens: int) -> None:
        self._num_streams = num_streams
        self._num_tokens = num_tokens
        self._client = DeltaClient(on_lost=lambda _: None)
        self._orders: list[Order] = []
        self._has_all = asyncio.Event()

    async def take_orders(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = msgspec.msgpack.Decoder(Order)
        while len(self._orders) < self._num_streams:
            order = decoder.decode(await read_frame(reader, MAX_ORDER_BYTES))
            await self._client.connect(order.gateway)
            taken = RequestOutput(order.request_id, 0, [], [], finished=False, fingerprint="fp_scripted")
            self._client.send(order.gateway, [taken])
            self._orders.append(order)
        self._has_all.set()

    async def step_on_demand(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._has_all.wait()
        for index in range(self._num_tokens):
            await reader.readexactly(1)
            deltas = [self._delta(order.request_id, index) for order in self._orders]
            self._client.send(self._orders[0].gateway, deltas)

    def _delta(self, request_id: str, index: int) -> RequestOutput:
        is_last = index == self._num_tokens - 1
        choice = CompletionOutput(0, TEXT, [5], index, finish_reason="length" if is_last else None)
        if index > 0:
            return RequestOutput(request_id, 0, [], [choice], is_last)
        return RequestOutput(request_id, 0, [1] * 64, [choice], is_last, max_tokens=self._num_tokens)


async def serve(num_streams: int, num_tokens: int) -> None:
    engine = ScriptedEngine(num_streams, num_tokens)
    servers = [
        await asyncio.start_server(handler, LOOPBACK, 0) for handler in (engine.take_orders, engine.step_on_demand)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the benchmark closes it
    await engine._client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.streams, arguments.tokens))


if __name__ == "__main__":
    main()
