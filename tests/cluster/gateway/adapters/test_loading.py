"""Adapters that come and go: by the HTTP routes, on two gateways that share a store."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.app import build
from cluster.api.errors import Unavailable
from cluster.api.keys.key_ring import KeyRing
from cluster.api.models.adapters import Adapters
from cluster.api.models.model import Model, Models
from cluster.api.options import HttpOptions
from cluster.checkpoint.loadable import Loadable
from cluster.gateway.adapters.loading import AdapterLoading
from cluster.gateway.adapters.store import Change
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.request import Adapter
from parallel.spec.adapter import WEIGHTS_FILE
from tests.adapters import demo_shapes, save_adapter
from tests.cluster.api.scripted import ScriptedService, listening
from tests.engine.support.workloads import DEMO

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MESSAGES = [{"role": "user", "content": "Hello?"}]


class Store(dict[str, Change]):
    """An `AdapterStore` of this process."""

    async def swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        return self.swap_now(name, before, after)

    def swap_now(self, name: str, before: Change | None, after: Change | None) -> bool:
        if self.get(name) != before:
            return self.get(name) == after
        self.pop(name, None)
        if after is not None:
            self[name] = after
        return True

    async def read(self) -> dict[str, Change]:
        return dict(self)

    @property
    def adapters(self) -> dict[str, Adapter | None]:
        return {name: change.adapter for name, change in self.items()}


class SlowStore(Store):
    """Whose first reader gets what is there only when it may."""

    def __init__(self) -> None:
        self.is_read, self.may_tell = asyncio.Event(), asyncio.Event()

    async def read(self) -> dict[str, Change]:
        found = dict(self)
        if not self.is_read.is_set():
            self.is_read.set()
            await self.may_tell.wait()
        return found


class FailingStore(Store):
    """That no longer answers once something was stored, until it may; `forgets_answer`: it is
    there, and its answer is lost.
    """

    def __init__(self, *, forgets_answer: bool) -> None:
        self.fails, self.is_away = True, False
        self._forgets_answer = forgets_answer

    async def swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        self._check()
        is_stored = await super().swap(name, before, after)
        self.is_away = self.fails
        if self._forgets_answer:
            self._check()
        return is_stored

    async def read(self) -> dict[str, Change]:
        self._check()
        return await super().read()

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("away", code="not_ready", retry_after=1)


class LateStore(Store):
    """As Ray's: what is stored is so in a thread, whether anybody waits for that or not."""

    def __init__(self) -> None:
        self.is_putting = asyncio.Event()
        self.may_put, self.has_put = threading.Event(), threading.Event()

    async def swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        self.is_putting.set()
        return await asyncio.to_thread(self._swap, name, before, after)

    def _swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        self.may_put.wait(10)
        is_stored = self.swap_now(name, before, after)
        self.has_put.set()
        return is_stored


class Gateways:
    """Two of one application. Engine replicas say `problems` of the next adapters."""

    def __init__(self, root: Path, given: Adapter, stack: ExitStack, options: HttpOptions) -> None:
        config = EngineConfig.create(model=DEMO, enable_lora=True, max_lora_rank=16)
        loadable = Loadable.configured([str(root)], config)
        assert loadable is not None
        self.store, self.loadings, self.clients = Store(), [], []
        self.service = ScriptedService()
        self.problems: list[str] = []
        self.tried: list[Adapter] = []
        for _ in range(2):
            adapters = Adapters([given])
            loading = AdapterLoading(adapters, loadable, self.store, self.probe, self.tell)
            model = Model(name="demo", max_model_len=64, vocab_size=1000, adapters=adapters)
            port = stack.enter_context(
                listening(build(self.service, Models.one(self.service, model, loading), options))
            )
            self.loadings.append(loading)
            self.clients.append(stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}")))

    async def probe(self, adapter: Adapter) -> list[str]:
        self.tried.append(adapter)
        return self.problems

    async def tell(self) -> None:
        for loading in self.loadings:
            await loading.look()

    def names(self) -> list[list[str]]:
        return [[card["id"] for card in client.get("/v1/models").json()["data"]] for client in self.clients]

    def adapter_of(self, gateway: int, name: str) -> Adapter | None:
        """That a request gets which names it."""
        body = {"model": name, "messages": MESSAGES}
        assert self.clients[gateway].post("/v1/chat/completions", json=body).json()["model"] == name
        return self.service.generated[-1].adapter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def given(root: Path) -> Adapter:
    return save_adapter(root / "harbour", demo_shapes(), seed=1)


@pytest.fixture
def gateways(root: Path, given: Adapter) -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield Gateways(root, given, stack, HttpOptions())


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def test_every_gateway_takes_what_one_has_loaded(gateways: Gateways, root: Path, given: Adapter) -> None:
    quay = save_adapter(root / "quay", demo_shapes(), seed=2)
    one, two = gateways.clients
    answer = one.post(LOAD, json={"lora_name": "quay", "lora_path": quay.folder})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'quay' added successfully.")
    assert gateways.tried == [quay]
    assert gateways.names() == [["demo", "harbour", "quay"]] * 2
    assert gateways.adapter_of(1, "quay") == quay
    answer = two.post(UNLOAD, json={"lora_name": "quay"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'quay' removed successfully.")
    two.post(UNLOAD, json={"lora_name": "harbour", "lora_int_id": 1}).raise_for_status()
    assert gateways.names() == [["demo"]] * 2
    body = {"model": "harbour", "messages": MESSAGES}
    assert refused(one.post("/v1/chat/completions", json=body))[:2] == (404, "model_not_found")
    assert refused(one.post(UNLOAD, json={"lora_name": "quay"}))[:2] == (404, "adapter_not_found")
    one.post(LOAD, json={"lora_name": "harbour", "lora_path": given.folder}).raise_for_status()
    assert gateways.adapter_of(1, "harbour") == given
    assert gateways.store.adapters == {"harbour": given}  # and nothing of one that has come and gone


def test_a_name_is_replaced_only_if_that_is_asked_for(gateways: Gateways, root: Path, given: Adapter) -> None:
    body: dict[str, Any] = {"lora_name": "harbour", "lora_path": given.folder}
    changed = save_adapter(root / "harbour", demo_shapes(), seed=3)
    (client, _) = gateways.clients
    assert refused(client.post(LOAD, json=body))[:2] == (400, "adapter_exists")
    assert gateways.adapter_of(0, "harbour") == given
    client.post(LOAD, json=body | {"load_inplace": True}).raise_for_status()
    assert gateways.adapter_of(1, "harbour") == changed != given
    status, _, message = refused(client.post(LOAD, json=body | {"lora_name": "demo"}))
    assert (status, message) == (400, '"demo" is the name of a model')


def test_only_folders_below_the_roots_are_read(gateways: Gateways, root: Path, tmp_path: Path) -> None:
    outside = Path(save_adapter(tmp_path / "outside", demo_shapes()).folder)
    (root / "link").symlink_to(outside)
    inside = Path(save_adapter(root / "inside", demo_shapes()).folder)
    (inside / WEIGHTS_FILE).unlink()
    (inside / WEIGHTS_FILE).symlink_to(outside / WEIGHTS_FILE)
    for path in (outside, root / "link", root / ".." / "outside", inside, Path("/etc"), Path("/proc/self/root")):
        answer = gateways.clients[0].post(LOAD, json={"lora_name": "bad", "lora_path": str(path)})
        status, _, message = refused(answer)
        assert status == 400, message
        assert "is outside the folders of --lora-roots" in message
        assert str(root) in message
    good = root / "good"
    good.symlink_to(shutil.copytree(outside, root / "deep" / "copy"))
    gateways.clients[0].post(LOAD, json={"lora_name": "good", "lora_path": str(good)}).raise_for_status()
    adapter = gateways.adapter_of(0, "good")
    assert adapter is not None
    assert adapter.folder == str(root / "deep" / "copy")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"lora_path": "/x"}, "'lora_name' is required"),
        ({"lora_name": "a"}, "'lora_path' is required"),
        ({"lora_name": "a b", "lora_path": "/x"}, "Invalid 'lora_name'"),
        ({"lora_name": "a", "lora_path": "quay"}, "is not an absolute path"),
        ({"lora_name": "a", "lora_path": "/x\0"}, "is not an absolute path"),
        ({"lora_name": "a", "lora_path": "{root}/none"}, "cannot be read: No such file"),
        ({"lora_name": "a", "lora_path": "{root}/dora"}, "DoRA"),
        ({"lora_name": "a", "lora_path": "{root}/large"}, "has rank 32, and max_lora_rank is 16"),
        ({"lora_name": "a", "lora_path": "/x", "load_in_place": True}, "did you mean 'load_inplace'?"),
    ],
)
def test_bad_requests_change_nothing(gateways: Gateways, root: Path, body: dict[str, Any], words: str) -> None:
    save_adapter(root / "dora", demo_shapes(), changes={"use_dora": True})
    save_adapter(root / "large", demo_shapes(), rank=32)
    if "lora_path" in body:
        body = body | {"lora_path": body["lora_path"].replace("{root}", str(root))}
    status, _, message = refused(gateways.clients[0].post(LOAD, json=body))
    assert status == 400
    assert words in message
    assert "InvalidConfig" not in message
    assert gateways.tried == []
    assert gateways.names() == [["demo", "harbour"]] * 2


def test_an_adapter_that_a_replica_cannot_load_is_not_taken(gateways: Gateways, given: Adapter) -> None:
    gateways.problems = ["engine-2: quay/adapter_config.json cannot be read"]
    answer = gateways.clients[0].post(LOAD, json={"lora_name": "quay", "lora_path": given.folder})
    status, code, message = refused(answer)
    assert (status, code) == (503, "not_ready")
    assert gateways.problems[0] in message
    assert gateways.names() == [["demo", "harbour"]] * 2


async def test_a_gateway_that_heard_nothing_looks_by_itself(root: Path, given: Adapter) -> None:
    loadable = Loadable.configured([str(root)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    store, late = Store(), Adapters()
    await AdapterLoading(Adapters(), loadable, store, nothing, none_told).load("quay", given.folder, in_place=False)
    looking = asyncio.create_task(AdapterLoading(late, loadable, store, nothing, none_told).keep_looking())
    async with asyncio.timeout(10):
        while late.find("quay") is None:
            await asyncio.sleep(0)
    looking.cancel()


async def test_an_early_look_does_not_undo_what_was_loaded_meanwhile(root: Path, given: Adapter) -> None:
    loadable = Loadable.configured([str(root)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    store, adapters = SlowStore(), Adapters()
    loading = AdapterLoading(adapters, loadable, store, nothing, none_told)
    looks = [asyncio.create_task(loading.look())]
    async with asyncio.timeout(10):
        await store.is_read.wait()
        store["quay"] = Change(given)
        looks.append(asyncio.create_task(loading.look()))
        await asyncio.sleep(0)
        store.may_tell.set()
        await asyncio.gather(*looks)
    assert adapters.find("quay") == given


def test_a_key_needs_its_permission(root: Path, given: Adapter, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: operator, key: one, loads_adapters: true}, {name: client, key: two}]")
    with ExitStack() as stack:
        gateways = Gateways(root, given, stack, HttpOptions(api_keys=KeyRing(file=str(file))))
        client, body = gateways.clients[0], {"lora_name": "quay", "lora_path": given.folder}
        answers = {
            key: client.post(LOAD, json=body, headers={"authorization": f"Bearer {key}"}) for key in ("three", "two")
        }
        assert refused(answers["three"])[:2] == (401, "invalid_api_key")
        assert refused(answers["two"])[:2] == (403, "key_not_allowed")
        assert gateways.tried == []
        client.post(LOAD, json=body, headers={"authorization": "Bearer one"}).raise_for_status()


def test_without_keys_only_this_machine_may(gateways: Gateways) -> None:
    answer = gateways.clients[0].post(UNLOAD, json={"lora_name": "harbour"}, headers={"x-forwarded-for": "192.0.2.1"})
    assert refused(answer)[:2] == (403, "key_or_loopback_needed")


async def test_no_two_models_have_an_adapter_of_one_name(tmp_path: Path) -> None:
    """Whichever is asked for first."""
    folder = save_adapter(tmp_path / "mine", demo_shapes(), rank=4).folder
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    is_asked = asyncio.Event()

    async def probe(adapter: Adapter) -> list[str]:
        await is_asked.wait()
        return []

    async def tell() -> None:
        return

    loadings = [AdapterLoading(Adapters(), loadable, Store(), probe, tell) for _ in range(2)]
    for loading in loadings:
        loading.beside(loadings)
    first, second = (asyncio.create_task(each.load("mine", folder, in_place=True)) for each in loadings)
    is_asked.set()
    await first
    with pytest.raises(InvalidRequest, match='"mine" is an adapter of another model'):
        await second


async def test_nor_when_two_gateways_are_asked_at_once(tmp_path: Path) -> None:
    """Both have looked before either has loaded: one of them, or both, take it back."""
    folder = save_adapter(tmp_path / "mine", demo_shapes(), rank=4).folder
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    stores = [Store(), Store()]  # of two models
    both_have_looked = asyncio.Barrier(2)

    async def probe(adapter: Adapter) -> list[str]:
        await both_have_looked.wait()
        return []

    async def tell() -> None:
        return

    gateways = [[AdapterLoading(Adapters(), loadable, store, probe, tell) for store in stores] for _ in range(2)]
    for loadings in gateways:
        for loading in loadings:
            loading.beside(loadings)
    loads = [gateways[0][0].load("mine", folder, in_place=False), gateways[1][1].load("mine", folder, in_place=False)]
    async with asyncio.timeout(20):
        results = await asyncio.gather(*loads, return_exceptions=True)
    refusals = [result for result in results if result is not None]
    assert refusals and all(isinstance(each, InvalidRequest) for each in refusals)
    assert len([store for store in stores if "mine" in store]) == 2 - len(refusals)


@pytest.mark.parametrize("forgets_answer", [False, True], ids=["then a look fails", "its answer is lost"])
@pytest.mark.parametrize("had_one", [False, True], ids=["a new one", "in place"])
async def test_a_load_that_fails_leaves_what_was_there(tmp_path: Path, forgets_answer: bool, had_one: bool) -> None:
    """As soon as the store answers again, and also for who tries once more."""
    old, new = (save_adapter(tmp_path / "mine", demo_shapes(), rank=4, seed=seed) for seed in (1, 2))
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    store = FailingStore(forgets_answer=forgets_answer)
    found = [Adapters(), Adapters()]

    async def probe(adapter: Adapter) -> list[str]:
        return []

    async def tell() -> None:
        with suppress(Unavailable):
            await other.look()

    loading, other = (AdapterLoading(adapters, loadable, store, probe, tell) for adapters in found)
    if had_one:
        store["mine"] = Change(old)
    with pytest.raises(Unavailable):
        await loading.load("mine", new.folder, in_place=had_one)
    store.is_away = store.fails = False
    await loading.look()
    await other.look()
    assert store.adapters == ({"mine": old} if had_one else {})
    assert [adapters.find("mine") for adapters in found] == [old if had_one else None] * 2
    await loading.load("mine", new.folder, in_place=had_one)
    assert store.adapters == {"mine": new} and [adapters.find("mine") for adapters in found] == [new, new]


@pytest.mark.parametrize("since", ["a", "b"], ids=["the same", "another"])
@pytest.mark.parametrize("forgets_answer", [False, True], ids=["then a look fails", "its answer is lost"])
async def test_what_was_loaded_since_is_not_taken_back(tmp_path: Path, forgets_answer: bool, since: str) -> None:
    folders = [save_adapter(tmp_path / name, demo_shapes(), rank=4, seed=seed) for seed, name in enumerate("ab")]
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    store = FailingStore(forgets_answer=forgets_answer)

    async def probe(adapter: Adapter) -> list[str]:
        return []

    async def tell() -> None: ...

    known = [Adapters(), Adapters()]
    loading, other = (AdapterLoading(adapters, loadable, store, probe, tell) for adapters in known)
    with pytest.raises(Unavailable):
        await loading.load("mine", folders[0].folder, in_place=False)
    store.is_away = store.fails = False
    (folder,) = (folder for folder in folders if folder.name == since)
    await other.load("mine", folder.folder, in_place=True)
    await loading.look()
    await other.look()
    found = [adapters.find("mine") for adapters in known]
    assert [adapter and adapter.digest for adapter in found] == [folder.digest] * 2


async def test_what_was_loaded_during_a_load_that_fails_is_back(tmp_path: Path) -> None:
    """By another gateway, while all replicas compute with this one's."""
    folders = [save_adapter(tmp_path / name, demo_shapes(), rank=4, seed=seed) for seed, name in enumerate("ab")]
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    store = FailingStore(forgets_answer=True)
    store.fails = False

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    async def probe(adapter: Adapter) -> list[str]:
        await other.load("mine", folders[0].folder, in_place=False)
        store.fails = True
        return []

    other = AdapterLoading(Adapters(), loadable, store, nothing, none_told)
    loading = AdapterLoading(adapters := Adapters(), loadable, store, probe, none_told)
    with pytest.raises(Unavailable):
        await loading.load("mine", folders[1].folder, in_place=True)
    store.is_away = store.fails = False
    await loading.look()
    found = adapters.find("mine")
    assert found is not None and found.digest == folders[0].digest


async def test_a_load_that_is_cancelled_is_taken_back_though_it_is_stored_later(tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "mine", demo_shapes(), rank=4).folder
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    store = LateStore()
    loading = AdapterLoading(Adapters(), loadable, store, nothing, none_told)
    load = asyncio.create_task(loading.load("mine", folder, in_place=False))
    async with asyncio.timeout(10):
        await store.is_putting.wait()
        load.cancel()
        await asyncio.wait([load], timeout=0.2)
        store.may_put.set()
        while not store.has_put.is_set():
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await load
    await loading.look()
    assert store == {}


async def test_an_adapter_that_is_unloaded_is_so_though_nobody_has_looked(tmp_path: Path) -> None:
    """The client is not told that it failed."""
    folder = save_adapter(tmp_path / "mine", demo_shapes(), rank=4)
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    store = FailingStore(forgets_answer=False)

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    loading = AdapterLoading(adapters := Adapters([folder]), loadable, store, nothing, none_told)
    await loading.unload(folder.name)
    assert store.is_away and store.adapters == {folder.name: None}
    store.is_away = False
    await loading.look()
    assert adapters.find(folder.name) is None


@pytest.mark.parametrize("in_place", [False, True], ids=["a new one", "in place"])
async def test_one_that_another_gateway_loads_meanwhile_is_replaced_only_in_place(
    tmp_path: Path, in_place: bool
) -> None:
    """While all replicas compute with this one's."""
    theirs, mine = (
        save_adapter(tmp_path / name, demo_shapes(), rank=4, seed=seed) for seed, name in enumerate(("theirs", "mine"))
    )
    loadable = Loadable.configured([str(tmp_path)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None
    store = Store()

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    async def probe(adapter: Adapter) -> list[str]:
        await other.load("quay", theirs.folder, in_place=False)
        return []

    other = AdapterLoading(Adapters(), loadable, store, nothing, none_told)
    loading = AdapterLoading(adapters := Adapters(), loadable, store, probe, none_told)
    if in_place:
        await loading.load("quay", mine.folder, in_place=True)
    else:
        with pytest.raises(InvalidRequest, match='"quay" is loaded already'):
            await loading.load("quay", mine.folder, in_place=False)
    found = adapters.find("quay")
    assert found is not None and found.digest == (mine if in_place else theirs).digest
    await loading.unload("quay")
    assert store == {}


class BrokenStore(Store):
    """Whose first reader fails unforeseen."""

    is_whole = False

    async def read(self) -> dict[str, Change]:
        if self.is_whole:
            return await super().read()
        self.is_whole = True
        raise RuntimeError("unforeseen")


async def test_a_look_that_fails_unforeseen_is_not_the_last(
    root: Path, given: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.gateway.adapters.loading.LOOK_SECONDS", 0.01)
    loadable = Loadable.configured([str(root)], EngineConfig.create(model=DEMO, enable_lora=True))
    assert loadable is not None

    async def nothing(*_: object) -> list[str]:
        return []

    async def none_told() -> None: ...

    late = Adapters()
    store = BrokenStore(quay=Change(given))
    looking = asyncio.create_task(AdapterLoading(late, loadable, store, nothing, none_told).keep_looking())
    async with asyncio.timeout(10):
        while late.find("quay") is None:
            await asyncio.sleep(0)
    looking.cancel()
