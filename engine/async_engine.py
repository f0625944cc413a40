"""The engine's thread, and its callers' streams: everything that is not the engine talks to it
through here.
"""

import asyncio
import gc
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from engine.config import EngineConfig, ModelConfig
from engine.errors import EngineDead, Overloaded, SquadronError
from engine.executor import Executor
from engine.llm_engine import LLMEngine
from engine.outputs import Phase, RequestOutput, failed_request
from engine.recorder import Event
from engine.sampling_params import SamplingParams
from engine.stats import EngineStats, stats_line
from engine.tokenizer import Message, Tokenizer

logger = logging.getLogger("squadron.engine")

Answer = TypeVar("Answer")
Prompt = str | list[int] | list[Message]
STATS_INTERVAL_SECONDS = 10.0
Sink = Callable[[list[RequestOutput]], None]


class AsyncEngine:
    """Owns an `LLMEngine` and the one thread that touches it; callers leave commands, which are
    done between steps.

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
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def arithmetic(self) -> dict[str, str]:
        """What tokens depend on beside the request, by name; once the engine has started. See
        `engine.fingerprint`.
        """
        return self._engine.arithmetic

    def start(self) -> None:
        """Load the model and start the thread; blocks. Raises InvalidConfig or WorkerLost."""
        self._engine.start()
        self._stats = self._logged = self._engine.stats()
        self._logged_at = time.monotonic()
        gc.collect()
        # what lives now stays: not to be walked again at every collection, which cost a third of a
        # step's work
        gc.freeze()
        self._thread.start()

    def events(self) -> tuple[Event, ...]:
        """The last ones; from any thread."""
        return self._engine.recorder.events

    def shutdown(self) -> None:
        """Stop the thread, end what runs with an error, stop the workers. Idempotent."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        gc.unfreeze()
        self._executor.shutdown()

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        output_ids: Sequence[Sequence[int]] = (),
        cumulative_logprobs: Sequence[float] = (),
        attempt: int = 0,
        priority: int = 0,
        cache_salt: str | None = None,
        is_suspect: bool = False,
    ) -> None:
        """Tokenize, check and queue, from any thread; `request_id` must be unique among those that
        run.

        `is_suspect`: engines' processes died with the request in flight; see
        `LLMEngine.add_request`. Raises InvalidRequest, InputProcessingError, Overloaded or
        EngineDead at once.
        """
        arrival_time = time.monotonic()
        self.check_health()
        self._check_queue()
        token_ids = self.tokenize(prompt)
        self._engine.check_request(token_ids, params, output_ids)
        self._post(
            partial(
                self._add,
                request_id,
                token_ids,
                params,
                prompt=self._prompt_text(prompt, token_ids),
                output_ids=output_ids,
                cumulative_logprobs=cumulative_logprobs,
                attempt=attempt,
                priority=priority,
                cache_salt=cache_salt,
                arrival_time=arrival_time,
                is_suspect=is_suspect,
            )
        )

    def abort(self, request_id: str) -> None:
        """Forget a request; from any thread, and of no effect on ids that are not there."""
        self._post(partial(self._engine.abort_request, request_id))

    async def generate(
        self, request_id: str, prompt: Prompt, params: SamplingParams, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """A request's deltas as they come; closing the iterator aborts it. `options` are those of
        `add_request`.

        Ids may repeat: two requests of one id know nothing of each other.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[RequestOutput] = asyncio.Queue()
        key = f"{request_id}#{next(self._num_streams)}"
        self._streams[key] = lambda output: _put(loop, queue, output)
        admission = asyncio.ensure_future(asyncio.to_thread(self.add_request, key, prompt, params, **options))
        try:
            await asyncio.shield(admission)
            finished = False
            while not finished:
                output = await queue.get()
                finished = output.finished
                yield replace(output, request_id=request_id)
        finally:
            del self._streams[key]
            # Behind the add, even where the caller went away while it was tokenizing.
            admission.add_done_callback(lambda done: self.abort(key) if not done.exception() else None)

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, of a conversation (a list of messages), or of ids (as they are).

        Raises InvalidRequest for a text of more tokens than the context has.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, self.max_model_len)
        messages = [message for message in prompt if not isinstance(message, int)]
        if messages:
            return self.tokenizer.encode_chat(messages, self.max_model_len)
        return [token_id for token_id in prompt if isinstance(token_id, int)]

    def _prompt_text(self, prompt: Prompt, token_ids: list[int]) -> str | None:
        """A completion's prompt as text, whichever way it was given; a conversation has none."""
        if isinstance(prompt, str):
            return prompt
        is_ids = bool(prompt) and isinstance(prompt[0], int)
        return self.tokenizer.decode(token_ids, skip_special_tokens=False) if is_ids else None

    def stats(self) -> EngineStats:
        """As of the last step or command."""
        return self._stats

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace; see `Timeline.chrome_trace`."""
        return await self._ask(self._engine.timeline.chrome_trace)

    async def why(self, request_id: str) -> dict[Phase, float]:
        """Where a request's time went; see `LLMEngine.why`."""
        return await self._ask(partial(self._engine.why, request_id))

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Have the engine's thread answer between two steps."""
        future: Future[Answer] = Future()
        self._post(partial(_answer, future, question))
        return await asyncio.wrap_future(future)

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
        """Why no token can come now, a line; None while all is well. From any thread."""
        if self._engine.recovering is not None:
            return f"workers are restarting: {self._engine.recovering}"
        return "the engine is shut down" if self._stopping else self._engine.dead

    def _check_queue(self) -> None:
        limit = self.config.max_num_queued_reqs
        if limit is not None and self.stats().num_requests_waiting + len(self._commands) >= limit:
            raise Overloaded(f"{limit} requests wait already (max_num_queued_reqs)")

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # a mistake of ours: say so loudly, answer everybody, take no more
                logger.exception("the engine's turn failed")
                self._engine.dead = self._engine.dead or f"{type(error).__name__}: {error}"
                self._deliver(self._engine.abandon(self._engine.dead))
        self._engine.dead = self._engine.dead or "the engine is shut down"
        self._do_commands()
        self._deliver(self._engine.abandon(self._engine.dead))

    def _turn(self) -> None:
        """What callers left to do, a step, and rest if there is nothing more."""
        self._do_commands()
        if self._engine.has_unfinished_requests():
            self._deliver(self._engine.step())
        self._stats = self._engine.stats()
        self._log_stats()
        if not (self._commands or self._engine.has_unfinished_requests()):
            self._wake.wait()
        self._wake.clear()

    def _log_stats(self) -> None:
        """A line every ten seconds in which something was done."""
        seconds = time.monotonic() - self._logged_at
        if seconds < STATS_INTERVAL_SECONDS or not self.config.log_stats:
            return
        if self.stats().num_steps > self._logged.num_steps:
            logger.info("%s", stats_line(self._logged, self.stats(), seconds))
        self._logged, self._logged_at = self.stats(), time.monotonic()

    def _do_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _add(self, request_id: str, token_ids: list[int], params: SamplingParams, **options: Any) -> None:
        try:
            self._engine.add_request(request_id, token_ids, params, **options)
        except SquadronError as error:  # it was checked before it was queued, but the engine may have died since
            self._deliver([failed_request(request_id, options["attempt"], token_ids, str(error))])
        except Exception as error:  # this request's own trouble, not the others'
            logger.exception("request %s could not be added", request_id)
            message = f"{type(error).__name__}: {error}"
            self._deliver([failed_request(request_id, options["attempt"], token_ids, message)])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            put = self._streams.get(output.request_id)
            if put is not None:
                put(output)
        if self._on_outputs is not None and outputs:
            self._on_outputs(outputs)


def _answer(future: Future[Answer], question: Callable[[], Answer]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the asker has gone
    try:
        future.set_result(question())
    except Exception as error:
        future.set_exception(error)


def _put(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[RequestOutput], output: RequestOutput) -> None:
    """Hand an output over to the caller's event loop, if that still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, output)
