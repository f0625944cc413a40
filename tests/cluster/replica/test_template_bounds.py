"""A chat template that never ends, over HTTP: a clear error, and nobody else waits for it."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from cluster.gateway.gateway import Gateway
from cluster.owner import this_process
from cluster.sockets import LOOPBACK
from engine.config import EngineConfig
from engine.text.template_process import MAX_CPU_SECONDS
from tests.cluster.replica.test_deployment import CONFIG, DEMO, SECONDS, Replica, Replicas

SPIN = "spin"
TEMPLATE = (
    "{% if messages[-1].content == '" + SPIN + "' %}{% set r = range(90000) | list %}"
    "{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}{% endif %}{{ messages[-1].content }}"
)


async def test_a_template_that_never_ends_is_an_error_and_a_stream_beside_it_goes_on(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(DEMO / name, tmp_path / name)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    replica = Replica.__new__(Replica)
    await replica.__init__(EngineConfig.create(**CONFIG.model_dump() | {"tokenizer": str(tmp_path)}), this_process())
    gateway = Gateway(Replicas([replica]), max_attempts=1, patience=SECONDS)
    await gateway.start(LOOPBACK)
    app = build(gateway, Models.one(gateway, Model(name="demo", **await replica.model_info())))
    config = uvicorn.Config(app, host=LOOPBACK, port=0, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}/v1", timeout=SECONDS) as client:
            undisturbed = await streamed(client)
            spinning = asyncio.create_task(client.post("/chat/completions", json=chat(SPIN)))
            num_beside = 0
            while not spinning.done():
                assert await streamed(client) == undisturbed
                num_beside += not spinning.done()
            refused = spinning.result()
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (500, "generation_failed")
            assert f"was ended after {MAX_CPU_SECONDS} s of computing" in error["message"]
            assert num_beside > 0, "whole streams, begun after it"
    finally:
        server.should_exit = True
        await serving
        await gateway.close()
        await replica.stop()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


async def streamed(client: httpx.AsyncClient) -> tuple[str, str]:
    """The text of a stream, and how it ended."""
    async with client.stream("POST", "/chat/completions", json=chat("hello", stream=True)) as response:
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    return "".join(choice["delta"].get("content") or "" for choice in choices), choices[-1]["finish_reason"]
