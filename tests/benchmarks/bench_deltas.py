"""What a token costs an engine replica, from its sampled id to its bytes on the delta channel.

    python -m tests.benchmarks.bench_deltas [--streams 64 256] [--steps 400] [--profile]

Prints processor time a token, medians of the steps: text and deltas, the way to the socket, and
beside them the driver's own part. Random ids of the demo's vocabulary are the samples; the other
end is a process that reads and drops. Target: at most 10 µs a token without the driver.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import multiprocessing
import pstats
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import WELCOME, GatewayAddress
from cluster.replica.running import RunningRequests
from cluster.sockets import TOKEN_BYTES
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.outputs import SamplerOutput
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest
from engine.text.tokenizer import Tokenizer
from tests.benchmarks.bench_driver import DEMO, NoOpExecutor
from tests.engine.support.arrivals import add_request

PROMPT_LEN = 64
WARM_UP_STEPS = 16


class RandomExecutor(NoOpExecutor):
    """Answers every step at once, with ids that stand for text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._random = np.random.default_rng(0)
        self._ids = [i for i in range(len(tokenizer.token_bytes)) if i not in tokenizer.special_ids]

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        output = super().submit(request).result()
        answered: Future[SamplerOutput] = Future()
        token_ids = self._random.choice(self._ids, len(output.token_ids)).astype(np.int32)
        answered.set_result(replace(output, token_ids=token_ids))
        return answered


class Clock:
    """Processor time of this thread in a function, a list of seconds a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        started = time.thread_time()
        try:
            return self._function(*arguments)
        finally:
            self.seconds.append(time.thread_time() - started)


async def measure(num_streams: int, num_steps: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Seconds of processor time a token, by part."""
    engine = text_engine(num_streams, num_steps)
    sink, address = _sink()
    running, client = RunningRequests(), DeltaClient(lambda gateway: None)
    await client.connect(address)
    for number in range(num_streams):
        await running.begin(Request(str(number), [50] * PROMPT_LEN, SamplingParams()), address)
    process = Clock(engine.processor.process)
    engine.processor.process = process  # type: ignore[method-assign]

    def send(outputs: list[Any]) -> None:
        for gateway, news in running.take(outputs, is_alive=True).items():
            client.send(gateway, news)

    whole: list[float] = []
    gc.freeze()  # as AsyncEngine does
    loop = asyncio.get_running_loop()
    for number in range(WARM_UP_STEPS + num_steps):
        if number == WARM_UP_STEPS and profile is not None:
            profile.enable()
        started = time.thread_time()
        loop.call_soon_threadsafe(send, engine.step())
        await asyncio.sleep(0)
        whole.append(time.thread_time() - started)
    if profile is not None:
        profile.disable()
    await client.close()
    sink.join()
    text = float(np.median(process.seconds[-num_steps:])) / num_streams
    total = float(np.median(whole[-num_steps:])) / num_streams
    return {"text_and_deltas": text, "whole": total}


def text_engine(num_streams: int, num_steps: int) -> LLMEngine:
    config = EngineConfig.create(model=DEMO, max_num_seqs=num_streams, max_num_batched_tokens=PROMPT_LEN * num_streams)
    tokenizer = Tokenizer(DEMO)
    engine = LLMEngine(Parts(config, ModelConfig.load(DEMO), tokenizer, RandomExecutor(tokenizer)))
    engine.start()
    params = SamplingParams(max_tokens=num_steps + 2 * WARM_UP_STEPS, ignore_eos=True)
    for number in range(num_streams):
        add_request(engine, str(number), [50] * PROMPT_LEN, params)
    while engine.stats().num_requests_waiting:
        engine.step()
    return engine


def _sink() -> tuple[multiprocessing.Process, GatewayAddress]:
    """A gateway that drops what it is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    process = multiprocessing.get_context("fork").Process(target=_read_all, args=(listener,), daemon=True)
    process.start()
    return process, GatewayAddress("127.0.0.1", listener.getsockname()[1], bytes(TOKEN_BYTES))


def _read_all(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.recv(1 << 10)
    connection.send(WELCOME)
    while connection.recv(1 << 20):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, by function")
    arguments = parser.parse_args()
    results = {}
    for num_streams in arguments.streams:
        profile = cProfile.Profile() if arguments.profile else None
        results[num_streams] = asyncio.run(measure(num_streams, arguments.steps, profile))
        for name, seconds in results[num_streams].items():
            print(f"{num_streams:>5} streams  {name:<18} {seconds * 1e6:6.2f} us a token")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
