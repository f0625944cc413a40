"""What a delta costs a gateway: from the delta channel's message to the events of a chat stream.

    python -m tests.benchmarks.bench_gateway [--streams 64] [--tokens 400]

Prints processor time for each delta, without the socket at either end.
"""

import argparse
import asyncio
import gc
import json
import time

from cluster.api.model import Model
from cluster.api.requests.read import Reader
from cluster.api.responses.chat import chat_events
from cluster.api.responses.generation import run
from cluster.gateway.gateway import Gateway
from cluster.replica.delta_channel import GatewayAddress
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Request

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 4000}).encode()


class OpenCall:
    """Is never answered: the deltas are all that counts."""

    async def result(self) -> str:
        await asyncio.Event().wait()
        return ""

    def cancel(self) -> None:
        pass


class Engines:
    """Notes what is asked."""

    def __init__(self) -> None:
        self.request_ids: list[str] = []

    def generate(self, request: Request, gateway: GatewayAddress) -> OpenCall:
        self.request_ids.append(request.id)
        return OpenCall()

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        return True


async def measure(num_streams: int, num_tokens: int) -> float:
    """Seconds of processor time for each delta."""
    engines = Engines()
    gateway = Gateway(engines, max_attempts=1, patience=1000.0)
    await gateway.start("127.0.0.1")
    model = Model(name="demo", max_model_len=8192, vocab_size=1000)
    reader = Reader(model, strict_fields=False)

    async def read() -> None:
        call = await reader.chat(BODY)
        async for _ in chat_events(call, model, run(gateway, call)):
            pass

    readers = [asyncio.create_task(read()) for _ in range(num_streams)]
    while len(engines.request_ids) < num_streams:
        await asyncio.sleep(0)
    steps = [[delta(name, index, num_tokens) for name in engines.request_ids] for index in range(num_tokens)]
    gc.freeze()
    started = time.process_time()
    for deltas in steps:
        gateway._journals.accept(deltas, "connection")
        await asyncio.sleep(0)  # each reader has its turn, and finds one delta
    await asyncio.gather(*readers)
    spent = time.process_time() - started
    await gateway.close()
    return spent / (num_streams * num_tokens)


def delta(request_id: str, index: int, num_tokens: int) -> RequestOutput:
    finished = index == num_tokens - 1
    choice = CompletionOutput(0, "ab", [5], index, finish_reason="length" if finished else None)
    return RequestOutput(request_id, 0, [1, 2] if index == 0 else [], [choice], finished)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    seconds = asyncio.run(measure(arguments.streams, arguments.tokens))
    print(f"delta_cpu_seconds  {seconds * 1e6:8.1f} us for each delta of {arguments.streams} streams")
    print(json.dumps({"delta_cpu_seconds": seconds}))


if __name__ == "__main__":
    main()
