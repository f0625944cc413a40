"""The Serve deployment of the engine, which owns the workers, answers the gateways and tells them
how it is.
"""

import asyncio
import ctypes
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from cluster.logs import log_beside_serve
from cluster.owner import Owner
from cluster.replica.admission import Admission, EngineStopping, Refusal
from cluster.replica.delta_channel import EngineReport, GatewayAddress
from cluster.replica.delta_client import DeltaClient
from cluster.workers.executor import make_executor
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import EngineDead, FingerprintChanged, SquadronError
from engine.fingerprint import fingerprint
from engine.outputs import RequestOutput
from engine.recorder import Event
from engine.request import ChatPrompt, Prompt, Request, Resume
from engine.sampling_params import SamplingParams

logger = logging.getLogger("squadron.engine")

REPORT_SECONDS = 0.2
LONG_PROMPT = 64 << 10  # characters; a tenth of a second
STUCK_SECONDS = 10.0  # without a step's end while requests wait for one


class EngineDeployment:
    """One engine and its workers, which live in the replica's placement group and die with it."""

    async def __init__(self, config: EngineConfig, owner: Owner) -> None:  # type: ignore[misc]  # Serve awaits it
        log_beside_serve()
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._name = _actor_name()
        if self._name:
            _end_at_sigterm()
        self._running: dict[str, _Running] = {}
        self._is_stopping = False
        self._step = (0, time.monotonic())  # how many had ended, and when the last one did
        # Tokenizing would hold up the deltas; long prompts, one after the other, would hold up
        # short ones.
        self._admissions = ThreadPoolExecutor(2, thread_name_prefix="admissions")
        self._long_admissions = ThreadPoolExecutor(1, thread_name_prefix="long-admissions")
        self._engine = AsyncEngine(config, make_executor(config), on_outputs=self._publish)
        self._client = DeltaClient(self._on_gateway_lost)
        self._reporting: asyncio.Task[None] | None = None  # once the engine has started
        self._engine.tokenizer.start()
        await asyncio.to_thread(self._engine.start)
        self._fingerprint = fingerprint(self._engine.arithmetic)
        logger.info("fingerprint %s: %s", self._fingerprint, self._engine.arithmetic)
        self._reporting = asyncio.create_task(self._report())

    async def generate(self, admission: Admission) -> Refusal | str:
        """Take a request and stay until its last delta has been sent; the name of the connection
        that it went over.
        """
        try:
            self._check(admission)
            connection = await self._client.connect(admission.gateway)
        except SquadronError as error:
            return Refusal.of(error)
        except OSError as error:
            return Refusal("engine_dead", f"it cannot reach the gateway: {error}")
        taken = RequestOutput(
            admission.request_id, admission.attempt, [], [], finished=False, fingerprint=self._fingerprint
        )
        self._client.send(admission.gateway, [taken])
        running = self._running[admission.request_id] = _Running(admission.gateway)
        threads = self._long_admissions if _is_long(admission.prompt) else self._admissions
        adding = threads.submit(self._add, admission)
        try:
            await asyncio.wrap_future(adding)
            await running.done
        except SquadronError as error:
            return Refusal.of(error)
        finally:
            del self._running[admission.request_id]
            if not running.is_finished:
                # Behind the add, which goes on where the caller went away meanwhile.
                adding.add_done_callback(lambda _: self._engine.abort(admission.request_id))
        return connection

    async def connect(self, gateway: GatewayAddress) -> None:
        """Report to the gateway from now on."""
        with suppress(OSError):
            await self._client.connect(gateway)
            self._client.report(self._describe())

    async def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return asdict(self._engine.stats())

    async def events(self) -> tuple[str, tuple[Event, ...]]:
        """The replica's name, and what happened to it last."""
        return self._name, self._engine.events()

    async def probe(self) -> str | None:
        """Generate a token, by every rank; what went wrong, a line."""
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        try:
            async for output in self._engine.generate(Request("probe", [0], params)):
                if output.error is not None:
                    return output.error
        except SquadronError as error:
            return str(error)
        return None

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace."""
        return await self._engine.trace()

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase of a request; None if this replica does not know it."""
        try:
            return {phase: seconds for phase, seconds in (await self._engine.why(request_id)).items()}
        except KeyError:
            return None

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model."""
        model = self._engine.model_config
        return {
            "max_model_len": self._engine.max_model_len,
            "vocab_size": model.vocab_size,
            "default_sampling": model.default_sampling,
            "special_ids": self._engine.tokenizer.special_ids,
            "text_limit": self._engine.tokenizer.text_limit(self._engine.max_model_len),
        }

    def check_health(self) -> None:
        """Raises EngineDead; Serve then replaces the replica."""
        self._engine.check_health()

    async def stop(self, caller: Owner) -> None:
        """End the workers; what runs is given back. Raises NotOwner."""
        self._owner.check(caller, "to stop an engine")
        self._hand_back()
        await asyncio.to_thread(self._engine.shutdown)

    async def __del__(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        await asyncio.to_thread(self._engine.shutdown)
        for running in self._running.values():
            running.finish(EngineDead("the engine is shut down"))
        for threads in (self._admissions, self._long_admissions):
            threads.shutdown(wait=False, cancel_futures=True)
        await self._client.close()

    async def _report(self) -> None:
        """Tell the gateways how the replica is, and see whether it is to end."""
        while True:
            self._client.report(self._describe())
            if not self._is_stopping and _is_being_stopped():
                self._hand_back()
            if self._engine.is_dead and self._name and not self._is_stopping:
                await self._leave()
            await asyncio.sleep(REPORT_SECONDS)

    def _describe(self) -> EngineReport:
        return EngineReport(
            self._name,
            _node_id(),
            os.getpid(),
            self._problem(),
            self._engine.stats(),
            self._fingerprint,
            self._engine.arithmetic,
        )

    def _problem(self) -> str | None:
        if self._is_stopping:
            return "it is told to stop"
        stats, now = self._engine.stats(), time.monotonic()
        if stats.num_steps != self._step[0] or not stats.num_requests_running:
            self._step = (stats.num_steps, now)
        elif now - self._step[1] > STUCK_SECONDS:
            return f"no step has ended for {now - self._step[1]:.0f} s"
        return self._engine.problem()

    def _hand_back(self) -> None:
        """Another replica goes on with what runs here, from what the gateways have after this
        step.
        """
        self._is_stopping = True
        logger.info("told to stop: %d requests are given back", len(self._running))
        for running in self._running.values():
            running.fail(EngineStopping("its engine replica is told to stop"))

    async def _leave(self) -> None:
        """A replica that cannot answer any more is replaced as soon as its process has ended."""
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        await asyncio.to_thread(self._engine.shutdown)
        os._exit(1)

    def _check(self, admission: Admission) -> None:
        if self._is_stopping:
            raise EngineStopping("this engine replica is told to stop")
        if admission.fingerprint not in (None, self._fingerprint):
            raise FingerprintChanged(
                f"its tokens are of {admission.fingerprint}, and this engine is {self._fingerprint}"
            )
        self._engine.check_health()

    def _add(self, admission: Admission) -> None:
        self._engine.add_request(
            Request(
                admission.request_id,
                admission.prompt,
                admission.params,
                priority=admission.priority,
                cache_salt=admission.cache_salt,
                resume=Resume(
                    attempt=admission.attempt,
                    output_ids=admission.output_ids,
                    cumulative_logprobs=admission.cumulative_logprobs,
                    is_suspect=admission.is_suspect,
                ),
            )
        )

    def _publish(self, deltas: list[RequestOutput]) -> None:
        """Called in the engine's thread, once a step."""
        self._loop.call_soon_threadsafe(self._send, deltas)

    def _send(self, deltas: list[RequestOutput]) -> None:
        by_gateway: dict[GatewayAddress, list[RequestOutput]] = {}
        is_alive = not self._engine.is_dead
        for delta in deltas:
            running = self._running.get(delta.request_id)
            if running is None:
                continue
            if delta.error is not None and delta.error_code is None and not is_alive:
                running.finish(EngineDead(delta.error))  # not for the client to hear: another replica may go on
                continue
            by_gateway.setdefault(running.gateway, []).append(running.trim(delta))
            if delta.finished:
                running.finish()
        for gateway, news in by_gateway.items():
            self._client.send(gateway, news)

    def _on_gateway_lost(self, gateway: GatewayAddress) -> None:
        for running in self._running.values():
            if running.gateway == gateway:
                running.fail(EngineDead("the connection to the gateway ended"))


class _Running:
    """A request on this replica, as far as its deltas go."""

    def __init__(self, gateway: GatewayAddress) -> None:
        self.gateway = gateway
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_finished = False  # the engine has forgotten it
        self._has_prompt = False

    def finish(self, error: SquadronError | None = None) -> None:
        self.is_finished = True
        if error is not None:
            self.fail(error)
        elif not self.done.done():
            self.done.set_result(None)

    def fail(self, error: SquadronError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def trim(self, delta: RequestOutput) -> RequestOutput:
        """The delta without what the gateway has (the prompt, once sent) or does not want (the
        times, which still change).
        """
        if self._has_prompt:
            return replace(delta, prompt_token_ids=[], prompt=None, metrics=None, max_tokens=None)
        self._has_prompt = True
        return replace(delta, metrics=None)


def _is_long(prompt: Prompt) -> bool:
    """Whether it takes more than moments to make token ids of the prompt."""
    match prompt:
        case str():
            return len(prompt) > LONG_PROMPT
        case ChatPrompt(messages):
            return sum(len(message.get("content") or "") for message in messages) > LONG_PROMPT
        case _:
            return False


def _actor_name() -> str:
    """Of this process' Serve replica; empty outside Serve."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return ""
    name: str = ray.get_runtime_context().get_actor_name()
    return name


def _end_at_sigterm() -> None:
    """Have SIGTERM end this process at once: what runs on it goes on elsewhere.

    Ray's own handler waits until every call has ended. It takes new calls meanwhile and never
    begins them, so new requests would wait for the longest stream. Python sets handlers from the
    main thread only, and that thread is Ray's.
    """
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, signal.SIG_DFL)


def _node_id() -> str:
    node_id: str = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    return node_id


def _is_being_stopped() -> bool:
    """Whether Serve has told this process' replica to stop.

    A deployment hears of it (by `__del__`) only once its requests have ended, which is what should
    come of it. Serve keeps the knowledge to itself, so it is looked up where Serve has it; not
    found, the replica is killed after its grace, and its requests go on elsewhere all the same.
    """
    for actor in ray._private.worker.global_worker.actors.values() if ray.is_initialized() else ():
        if getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False):
            return True
    return False
