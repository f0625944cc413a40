"""An engine replica that is to end hands its requests over with their blocks, in bounded time."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway.gateway import Gateway
from cluster.replica.changes.start import with_own_folder
from cluster.replica.leaving import left_blocks
from cluster.replica.leaving.left_blocks import LeftBlocks
from engine.config import EngineConfig
from engine.offload import shared_folder
from engine.offload.shared_folder import is_shared
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.cluster.replica.test_deployment import CONFIG, SECONDS, Replica, Replicas, tokens_of, two_replicas

LEAVING = CONFIG.model_copy(update={"kv_leaving_size": 0.5, "kv_peer_secret": "a secret of this test"})
PARAMS = SamplingParams(max_tokens=800, seed=7, ignore_eos=True)
PROMPT = "one two three " * 40
BLOCK = 16


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_blocks, "UNREAD_SECONDS", 0.1)
    monkeypatch.setattr(left_blocks, "LOOK_SECONDS", 0.01)


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    async with two_replicas(LEAVING) as replicas:
        yield replicas
    assert not any(folder_of(replica).exists() for replica in replicas)


@pytest.fixture
async def gateway(replicas: list[Replica]) -> AsyncIterator[Gateway]:
    gateway = Gateway(Replicas(replicas), max_attempts=2, patience=SECONDS)
    await gateway.start("127.0.0.1")
    yield gateway
    await gateway.close()


def folder_of(replica: Replica) -> Path:
    return Path(replica._replica.engine.config.kv_leaving_path or "")


def left_by(replica: Replica) -> LeftBlocks:
    assert replica._life is not None
    return replica._life._left


def num_computed(replica: Replica) -> int:
    """Tokens of prompts."""
    return int(replica._replica.engine.observer.stats().num_prompt_tokens)


async def moved(gateway: Gateway, replicas: list[Replica], hand_over: Any) -> list[int]:
    """A stream's tokens; `hand_over` is called after the first ones."""
    stream = gateway.generate(Request("mine", PROMPT, PARAMS, cache_salt="of the moved one"))
    outputs = [await anext(stream)]
    await hand_over()
    async for output in stream:
        outputs.append(output)
        assert output.error is None
    assert outputs[-1].attempt == 1
    return tokens_of(outputs)


async def undisturbed(gateway: Gateway) -> list[int]:
    return tokens_of([output async for output in gateway.generate(Request("alone", PROMPT, PARAMS))])


async def test_a_stream_goes_on_without_its_prompt_being_computed_again(
    gateway: Gateway, replicas: list[Replica]
) -> None:
    first, second = replicas
    assert folder_of(first) != folder_of(second) and is_shared(str(folder_of(first)))
    assert not folder_of(first).exists()

    async def hand_over() -> None:
        place = await left_by(first).store()
        assert place is not None and place.endswith(str(folder_of(first)))
        assert first._replica.engine.observer.stats().num_blocks_stored > len(PROMPT) // 4 // BLOCK
        first._replica.hand_back(place)

    said = await moved(gateway, replicas, hand_over)
    assert num_computed(second) < 4 * BLOCK < num_computed(first)
    async with asyncio.timeout(SECONDS):
        await left_by(first).wait()
    left_by(first).close()
    assert not folder_of(first).exists()
    assert said == await undisturbed(gateway)


async def test_a_store_that_takes_too_long_holds_nobody_up(
    gateway: Gateway, replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_blocks, "STORE_SECONDS", 0.05)
    monkeypatch.setattr(replicas[0]._replica.engine.controls, "leave", lambda _: Future())

    async def hand_over() -> None:
        replicas[0]._replica.hand_back(await left_by(replicas[0]).store())

    assert await moved(gateway, replicas, hand_over) == await undisturbed(gateway)


async def test_without_shared_memory_all_is_computed_again(
    gateway: Gateway, replicas: list[Replica], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for replica in replicas:
        path = str(tmp_path / "none" / "squadron-blocks-x")
        config = replica._replica.engine.config.model_copy(update={"kv_leaving_path": path})
        monkeypatch.setattr(replica._replica.engine, "config", config)
    monkeypatch.setattr(shared_folder, "SHARED_MEMORY", tmp_path / "none")

    async def hand_over() -> None:
        place = await left_by(replicas[0]).store()
        assert place is None
        replicas[0]._replica.hand_back(place)

    assert await moved(gateway, replicas, hand_over) == await undisturbed(gateway)


async def test_what_is_read_for_ever_is_not_served_for_ever(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_blocks, "READ_SECONDS", 0.2)
    monkeypatch.setattr(left_blocks, "UNREAD_SECONDS", SECONDS)
    left = left_by(replicas[0])
    assert await left.store() is not None, "also with nothing to store"
    async with asyncio.timeout(SECONDS / 2):
        await left.wait()
    left.close()
    left.close()


async def test_a_folder_that_somebody_has_removed_is_not_waited_for(replicas: list[Replica]) -> None:
    left = left_by(replicas[0])
    await left.store()
    left.close()
    await left.wait()


def test_who_stores_for_others_anyway_has_no_folder_of_its_own() -> None:
    assert with_own_folder(CONFIG) == CONFIG
    assert with_own_folder(LEAVING).kv_leaving_path != with_own_folder(LEAVING).kv_leaving_path
    for role, has_own in (("both", False), ("producer", False), ("consumer", True)):
        config: EngineConfig = LEAVING.model_copy(update={"kv_offloading_path": "/kept", "kv_role": role})
        assert (with_own_folder(config).kv_leaving_path is not None) == has_own
