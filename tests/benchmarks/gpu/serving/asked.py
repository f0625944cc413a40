"""The same requests alone, together and of other servers: every token and logprob, bit by bit."""

import random
from collections.abc import Sequence
from typing import Any

import openai

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.requests import WORDS, ChaosRequest

NUM_REQUESTS = 32
QUESTION = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
ANSWER = "42"


def requests(count: int, max_tokens: int) -> list[ChaosRequest]:
    """Half greedy, half with a temperature and a seed; prompts of a few to some hundred words."""
    draw = random.Random(5)
    made = []
    for index in range(count):
        text = " ".join(draw.choice(WORDS) for _ in range(draw.choice((4, 20, 60, 200))))
        body: dict[str, Any] = {"model": "demo", "prompt": text, "max_tokens": max_tokens, "logprobs": 2}
        body |= {"temperature": index % 2, "seed": index, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        made.append(ChaosRequest(index, ("greedy", "seeded")[index % 2], "/v1/completions", body))
    return made


async def ask(url: str, asked: Sequence[ChaosRequest], concurrency: int) -> list[str]:
    """A digest of each answer, in the order of requests. Raises ConnectionError if one failed."""
    streams: list[Stream] = []
    async with ChaosClient(url) as client:
        await client.send_all(list(asked), concurrency=concurrency, streams=streams)
    for stream in streams:
        if stream.error is not None or not stream.transcript.is_complete:
            raise ConnectionError(f"request {stream.request.index}: {stream.error or 'its stream ended early'}")
    streams.sort(key=lambda stream: stream.request.index)
    return [stream.transcript.digest() for stream in streams]


def differing(told: Sequence[str], expected: Sequence[str]) -> list[int]:
    return [index for index, pair in enumerate(zip(told, expected, strict=True)) if pair[0] != pair[1]]


def chat(url: str) -> tuple[str, str]:
    """The answer to a question, whole and streamed, by OpenAI's client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**QUESTION).choices[0].message.content  # type: ignore[call-overload]
        stream = client.chat.completions.create(**QUESTION, stream=True)  # type: ignore[call-overload]
        return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
