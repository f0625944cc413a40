"""The engine's thread and its callers' streams: the thread-safe interface to the engine."""

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from engine.admission.queue_limits import Arriving, QueueLimits
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import EngineDead, SquadronError
from engine.executor import Executor
from engine.frontend.commands import Commands
from engine.llm_engine import LLMEngine
from engine.outputs import Phase, RequestOutput, failed_request
from engine.records.measures import Measured
from engine.records.recorder import Event
from engine.records.stats import EngineStats
from engine.records.stats_log import StatsLog
from engine.records.timeline import StepRecord
from engine.request import Arrival, Request, estimated_tokens
from engine.text.prompt import arrive
from engine.text.tokenizer import Tokenizer

logger = logging.getLogger("squadron.engine")

Sink = Callable[[list[RequestOutput]], None]


class AsyncEngine:
    """Owns an `LLMEngine` and the one thread that touches it; callers post commands, which are
    executed between steps.

    Outputs go to `on_outputs`, called in the engine's thread once a step with the deltas of all
    requests, or, for requests begun by `generate`, to that caller's stream.
    """

    def __init__(self, config: EngineConfig, executor: Executor, *, on_outputs: Sink | None = None) -> None:
        self.config = config
        self.model_config = ModelConfig.load(config.model)
        self.tokenizer = Tokenizer(config.tokenizer or config.model)
        self._engine = LLMEngine(config, self.model_config, self.tokenizer, executor)
        self._executor = executor
        self._on_outputs = on_outputs
        self._streams: dict[str, Callable[[RequestOutput], None]] = {}
        self._num_streams = itertools.count()
        self._commands = Commands()
        self._arriving = Arriving()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def arithmetic(self) -> dict[str, str]:
        """What tokens depend on beside the request, by name; once the engine has started. See
        `engine.checkpoint.fingerprint`.
        """
        return self._engine.arithmetic

    def start(self) -> None:
        """Load the model and start the thread; blocks. Raises InvalidConfig or WorkerLost."""
        self._engine.start()
        self._stats = self._engine.stats()
        self._log = StatsLog(self._stats)
        gc.collect()
        # objects that exist now are permanent: walking them at every collection cost a third of a
        # step's work
        gc.freeze()
        self._thread.start()

    def events(self) -> tuple[Event, ...]:
        """The last ones; from any thread."""
        return self._engine.recorder.events

    def shutdown(self) -> None:
        """Stop the thread, end running requests with an error, stop the workers. Idempotent."""
        self._stopping = True
        self._commands.wake()
        if self._thread.is_alive():
            self._thread.join()
        gc.unfreeze()
        self._executor.shutdown()

    def add_request(self, request: Request) -> None:
        """Tokenize, check and queue, from any thread; its id must be unique among running requests.

        Raises InvalidRequest, InputProcessingError, Overloaded or EngineDead at once.
        """
        self.check_health()
        self.check_queue(request)
        arrival = arrive(request, self.tokenizer, self.max_model_len)
        self._engine.admission.check(request, arrival.prompt_token_ids)
        limits = self.queue_limits if _may_be_refused(request) else None
        self._arriving.enter(limits, self._stats, len(arrival.prompt_token_ids))
        self._commands.post(partial(self._add, arrival))

    def check_queue(self, request: Request) -> None:
        """Raises Overloaded if too much waits already, from what is known without tokenizing."""
        if _may_be_refused(request):
            self._arriving.check(self.queue_limits, self._stats, estimated_tokens(request.prompt))

    @property
    def queue_limits(self) -> QueueLimits:
        """Of the current cache, once the engine has started."""
        return QueueLimits.of(self.config, self._stats)

    def abort(self, request_id: str) -> None:
        """Abort a request; from any thread; unknown ids are ignored."""
        self._commands.post(partial(self._engine.abort_request, request_id))

    async def generate(self, request: Request) -> AsyncIterator[RequestOutput]:
        """A request's deltas as they come; closing the iterator aborts it.

        Ids may repeat: requests with the same id are independent.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[RequestOutput] = asyncio.Queue()
        key = f"{request.id}#{next(self._num_streams)}"
        self._streams[key] = lambda output: _put(loop, queue, output)
        adding = asyncio.ensure_future(asyncio.to_thread(self.add_request, replace(request, id=key)))
        try:
            await asyncio.shield(adding)
            finished = False
            while not finished:
                output = await queue.get()
                finished = output.finished
                yield replace(output, request_id=request.id)
        finally:
            del self._streams[key]
            # After the add, even if the caller left while it was tokenizing.
            adding.add_done_callback(lambda done: self.abort(key) if not done.exception() else None)

    def stats(self) -> EngineStats:
        """As of the last step or command."""
        return self._stats

    def measured(self) -> Measured:
        """As of now; from any thread."""
        return self._engine.recorder.measures.copy()

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace; see `Timeline.chrome_trace`."""
        return await self._commands.ask(self._engine.timeline.chrome_trace)

    async def why(self, request_id: str) -> dict[Phase, float]:
        """Where a request's time went; see `LLMEngine.why`."""
        return await self._commands.ask(partial(self._engine.why, request_id))

    async def steps_of(self, request_id: str, since: float, most: int) -> list[StepRecord]:
        """See `Timeline.steps_of`."""
        return await self._commands.ask(partial(self._engine.timeline.steps_of, request_id, since, most))

    def check_health(self) -> None:
        """Raise EngineDead if no request can be answered any more."""
        if self._engine.dead is not None:
            raise EngineDead(self._engine.dead)
        if self._stopping:
            raise EngineDead("the engine is shut down")

    @property
    def is_dead(self) -> bool:
        """Whether no request can be answered any more."""
        return self._stopping or self._engine.dead is not None

    def problem(self) -> str | None:
        """One line on why no token can come now; None if all is well. From any thread."""
        cause = self._engine.recovery.cause
        if cause is not None:
            return f"workers are restarting: {cause}"
        return "the engine is shut down" if self._stopping else self._engine.dead

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # a bug of ours: log it, end all requests, accept no more
                logger.exception("the engine's turn failed")
                self._engine.dead = self._engine.dead or f"{type(error).__name__}: {error}"
                self._deliver(self._engine.abandon(self._engine.dead))
        self._engine.dead = self._engine.dead or "the engine is shut down"
        self._commands.do_all()
        self._deliver(self._engine.abandon(self._engine.dead))

    def _turn(self) -> None:
        """Execute commands, run a step, and wait if there is nothing to do."""
        self._commands.do_all()
        if self._engine.has_unfinished_requests():
            self._deliver(self._engine.step())
        self._stats = self._engine.stats()
        self._arriving.counted()
        if self.config.log_stats:
            self._log.update(self._stats)
        if not self._engine.has_unfinished_requests():
            self._commands.wait()

    def _add(self, arrival: Arrival) -> None:
        self._arriving.queued(len(arrival.prompt_token_ids))
        try:
            self._engine.add_request(arrival)
        except SquadronError as error:  # it was checked before it was queued, but the engine may have stopped since
            self._refuse(arrival, str(error))
        except Exception as error:  # a failure of this request only
            logger.exception("request %s could not be added", arrival.request.id)
            self._refuse(arrival, f"{type(error).__name__}: {error}")

    def _refuse(self, arrival: Arrival, message: str) -> None:
        request = arrival.request
        self._deliver([failed_request(request.id, request.resume.attempt, arrival.prompt_token_ids, message)])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            put = self._streams.get(output.request_id)
            if put is not None:
                put(output)
        if self._on_outputs is not None and outputs:
            self._on_outputs(outputs)


def _may_be_refused(request: Request) -> bool:
    """Not if it has tokens: it was let in where they come from."""
    return not any(request.resume.output_ids)


def _put(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[RequestOutput], output: RequestOutput) -> None:
    """Hand an output over to the caller's event loop, if that still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, output)
