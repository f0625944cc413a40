"""The threads in which an engine replica adds requests: tokenizing in its event loop would delay
deltas.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial

from cluster.replica.threads.fair_threads import FairThreads
from engine.errors import EngineDead, Overloaded
from engine.frontend.async_engine import AsyncEngine
from engine.grammars.interface import GrammarTakesLong
from engine.request import ChatPrompt, Prompt, Request
from engine.text.template_renderer import TakesLong

LONG_PROMPT = 64 << 10  # characters; they take a tenth of a second
# Processor seconds for the chat template: it takes milliseconds, unless a client makes it loop.
TEMPLATE_SECONDS, LONG_TEMPLATE_SECONDS = 0.1, 1.0
# Processor seconds for a grammar at first: nearly all take less than a tenth of them.
GRAMMAR_SECONDS = 0.2
MAX_LONG_GRAMMARS = 8  # of one key, that wait or are compiled after that: each takes a second at most
CLOSED = "the engine is shut down"


class AdmissionThreads:
    """Long prompts have one thread of their own, and so have requests whose grammar is to be
    compiled, which may take seconds: neither delays the others, nor one API key's grammars
    another's. A conversation that takes long to render goes, after a first share of time, behind
    others of its kind, and so does a grammar that takes long to compile. A key that has many of
    these is refused more for now, so that what it costs is bounded.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._short = ThreadPoolExecutor(2, thread_name_prefix="admissions")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-admissions")
        self._compiling = FairThreads(2, "compiling-admissions")
        self._compiling_long = FairThreads(2, "long-compiling-admissions")
        self._rendering = FairThreads(2, "rendering-admissions")
        self._lock = threading.Lock()
        self._num_long: Counter[str | None] = Counter()  # of each key's grammars that take long, those not ended

    def add(self, request: Request) -> "Future[None]":
        """Add the request to the engine; the future raises what `AsyncEngine.add_request`
        raises.
        """
        is_long = _is_long(request.prompt)
        admission = _Admission(request, LONG_TEMPLATE_SECONDS if is_long else TEMPLATE_SECONDS)
        threads = self._long if is_long else self._short
        if not self._engine.compiles(request):
            self._give_turn(admission, threads.submit)
        elif self._has_many(admission):
            admission.fail(_too_many())
        else:
            self._give_turn(admission, partial(self._compiling.submit, request.share))
        return admission

    def close(self) -> None:
        for fair in (self._compiling, self._compiling_long, self._rendering):
            fair.close()
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)

    def _give_turn(self, admission: "_Admission", begin: "Callable[[Callable[[], None]], Future[None]]") -> None:
        try:
            begin(partial(self._add, admission)).add_done_callback(admission.end_with)
        except RuntimeError:  # the threads are closed
            admission.fail(EngineDead(CLOSED))

    def _add(self, admission: "_Admission") -> None:
        request = admission.request
        if not admission.is_wanted:
            return admission.fail(CancelledError())
        try:
            self._engine.add_request(request, admission.template_seconds, admission.grammar_seconds)
        except TakesLong:
            admission.template_seconds = None
            self._give_turn(admission, partial(self._rendering.submit, request.share))
        except GrammarTakesLong:
            admission.grammar_seconds = None
            self._compile_long(admission)
        except BaseException as error:
            admission.fail(error)
        else:
            admission.set_result(None)

    def _compile_long(self, admission: "_Admission") -> None:
        share = admission.request.share
        with self._lock:
            if self._has_many(admission):
                return admission.fail(_too_many())
            self._num_long[share.key] += 1

        def ended(_: "Future[None]") -> None:
            with self._lock:
                self._num_long[share.key] -= 1
                self._num_long += Counter()  # without zeros

        admission.add_done_callback(ended)
        self._give_turn(admission, partial(self._compiling_long.submit, share))

    def _has_many(self, admission: "_Admission") -> bool:
        """A request that goes on here has been accepted."""
        request = admission.request
        return not any(request.resume.output_ids) and self._num_long[request.share.key] >= MAX_LONG_GRAMMARS


def _too_many() -> Overloaded:
    return Overloaded(
        f"{MAX_LONG_GRAMMARS} structured outputs that take long to compile are waiting already",
        retry_after=float(MAX_LONG_GRAMMARS),
    )


class _Admission(Future[None]):
    """Of one request, over all its turns. It has begun as soon as it is there: whoever cancels it
    hears of its end, as it may be in a turn.
    """

    def __init__(self, request: Request, template_seconds: float) -> None:
        super().__init__()
        self.request = request
        self.template_seconds: float | None = template_seconds
        self.grammar_seconds: float | None = GRAMMAR_SECONDS
        self.is_wanted = True
        self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        self.is_wanted = False
        return super().cancel()

    def fail(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)

    def end_with(self, turn: "Future[None]") -> None:
        if turn.cancelled():
            self.fail(EngineDead(CLOSED))


def _is_long(prompt: Prompt) -> bool:
    """Whether tokenizing the prompt takes long."""
    match prompt:
        case str():
            return len(prompt) > LONG_PROMPT
        case ChatPrompt():
            return prompt.num_characters > LONG_PROMPT
        case _:
            return False
