"""How long the gateway's event loop stands still under the worst bodies that a caller can send.

    python -m tests.benchmarks.loop_pauses

The application runs in the loop of this process, without a socket, beside a task that only sleeps.
The longest time that this task is late is what a neighbour's stream would have waited.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from tests.cluster.api.scripted import MODEL, VOCAB_SIZE, ScriptedService

CHUNK_BYTES = 64 << 10  # as uvicorn hands a body over
BEAT_SECONDS = 0.002
MIB = 1 << 20
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello?"}
MAX_MODEL_LEN = 1 << 17


def bodies() -> dict[str, tuple[str, bytes]]:
    """By name: the route and the body."""

    def chat(**fields: Any) -> tuple[str, bytes]:
        return CHAT, json.dumps({"model": MODEL, "messages": [USER]} | fields).encode()

    def text(**fields: Any) -> tuple[str, bytes]:
        return COMPLETIONS, json.dumps({"model": MODEL, "prompt": "x"} | fields).encode()

    def raw(value: bytes) -> tuple[str, bytes]:
        return COMPLETIONS, b'{"model": "demo/model", "prompt": "x", "extra": ' + value + b"}"

    twice = b",".join(b'{"%d": 1, "%d": 2}' % (number, number) for number in range(200_000, 0, -1))
    return {
        "250,000 messages": chat(messages=[{"role": "user", "content": ""}] * 250_000),
        "8,000 messages": chat(messages=[USER] * 8_000),
        "700,000 unknown keys": text(**{f"key {number}": 1 for number in range(700_000)}),
        "60,000 unknown keys": text(**{f"key {number}": 1 for number in range(60_000)}),
        "keys twice": raw(b"[" + twice + b"]"),
        "empty lists": raw(b"[" + b"[]," * 250_000 + b"[]]"),
        "30 MiB of text": text(prompt="one two " * (30 * MIB // 8)),
        "30 MiB of escapes": raw(b'"' + rb"\"" * (15 * MIB) + b'"'),
        "30 MiB of other letters": text(prompt="ä" * (5 * MIB)),
        "30 MiB in a message": chat(messages=[{"role": "user", "content": "one two " * (30 * MIB // 8)}]),
        "16 MiB of brackets in a text": chat(messages=[{"role": "user", "content": "[1,2,3]," * (2 * MIB)}]),
        "nested 10^6": raw(b"[" * 10**6 + b"]" * 10**6),
        "nested 100": raw(b"[" + b",".join([b"[" * 100 + b"]" * 100] * 600) + b"]"),
        "a digit 10^6 times": raw(b"9" * 10**6),
        "10^6 large numbers": raw(b"[" + b"9" * 25 + b",%s" % (b"9" * 25) * 10**6 + b"]"),
        "10^6 biases": text(logit_bias={str(number): 1 for number in range(10**6)}),
        "250,000 stop strings": text(stop=["stop"] * 250_000),
        "10^6 stop ids": text(stop_token_ids=[number % VOCAB_SIZE for number in range(10**6)]),
        "10^6 allowed ids": text(allowed_token_ids=[number % VOCAB_SIZE for number in range(10**6)]),
        "10^6 ids in a prompt": text(prompt=[number % VOCAB_SIZE for number in range(10**6)]),
        "1,024 prompts of 1,000 ids": text(prompt=[[number % VOCAB_SIZE for number in range(1000)]] * 1024),
        "250,000 prompts": text(prompt=["x"] * 250_000),
        "250,000 parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 250_000}]),
        "250,000 tools": chat(tools=[{"type": "function"}] * 250_000),
    }


class Heart:
    """A task that is to wake every BEAT_SECONDS."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before - BEAT_SECONDS)
            before = now


async def send(app: Callable[..., Awaitable[None]], route: str, body: bytes) -> int:
    """The answer's status."""
    chunks = [body[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)]
    statuses: list[int] = []

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not chunks:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": route, "headers": headers, "query_string": b"", "root_path": ""}
    await app(scope, receive, take)
    return statuses[0]


async def main() -> None:
    service = ScriptedService()
    model = Model(name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE)
    app = build(service, Models.one(service, model))
    print(f"{'body':<30} {'MiB':>6} {'status':>6} {'longest pause':>14} {'answered after':>15}")
    for name, (route, body) in bodies().items():
        heart = Heart()
        beating = asyncio.create_task(heart.beat())
        await asyncio.sleep(0.05)
        started = time.perf_counter()
        status = await send(app, route, body)
        seconds = time.perf_counter() - started
        await asyncio.sleep(0.05)
        beating.cancel()
        print(f"{name:<30} {len(body) / MIB:>6.1f} {status:>6} {heart.longest:>12.3f} s {seconds:>13.3f} s", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
