"""A fault counts once the server has lost something by it, and not because its command says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from cluster.chaos import faults
from cluster.chaos.client import ChaosClient
from cluster.chaos.faults import deliver, engines, has_hit
from cluster.chaos.report import Fault
from engine.errors import InvalidConfig


@asynccontextmanager
async def server(recoveries: Path) -> AsyncIterator[ChaosClient]:
    """A client of a server whose engine has recovered as often as there are bytes in the file."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(
            {"engines": [{"replica": "a", "stats": {"num_recoveries": recoveries.stat().st_size}}]}
        )

    application = web.Application()
    application.router.add_get("/debug/engines", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, port = runner.addresses[0]
    try:
        async with ChaosClient(f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        await runner.cleanup()


@pytest.fixture
def recoveries(tmp_path: Path) -> Path:
    path = tmp_path / "recoveries"
    path.touch()
    return path


async def test_faults_that_hit_are_counted_until_there_are_enough(recoveries: Path) -> None:
    delivered: list[Fault] = []
    command = f"printf x >> {recoveries}"
    async with server(recoveries) as client:
        await deliver(client, command, delivered, most=2, interval=0.0, seconds=60.0)
        assert await engines(client) == {("a", 2)}
    assert [fault.what for fault in delivered] == [command] * 2


async def test_commands_that_fail_or_hit_nothing_are_not_counted(
    recoveries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "HIT_SECONDS", 0.0)
    delivered: list[Fault] = []
    async with server(recoveries) as client:
        for command in ("exit 3", "true"):
            await deliver(client, command, delivered, most=1, interval=0.0, seconds=0.2)
    assert delivered == []
    said = capsys.readouterr().err
    assert "the fault command ended with status 3" in said
    assert "the fault command had no effect" in said


async def test_a_server_that_is_gone_was_hit(recoveries: Path) -> None:
    async with server(recoveries) as client:
        before = await engines(client)
    async with ChaosClient("http://127.0.0.1:1") as client:
        assert await has_hit(client, before)
        with pytest.raises(InvalidConfig, match="/debug/engines does not answer"):
            await engines(client)
