"""The threads in which an engine replica adds requests: tokenizing in its event loop would delay
deltas.
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial

from cluster.replica.threads.fair_threads import FairThreads
from engine.errors import EngineDead
from engine.frontend.async_engine import AsyncEngine
from engine.request import ChatPrompt, Prompt, Request
from engine.text.template_renderer import TakesLong

LONG_PROMPT = 64 << 10  # characters; they take a tenth of a second
# Processor seconds for the chat template: it takes milliseconds, unless a client makes it loop.
TEMPLATE_SECONDS, LONG_TEMPLATE_SECONDS = 0.1, 1.0
CLOSED = "the engine is shut down"


class AdmissionThreads:
    """Long prompts have one thread of their own, and so have requests whose grammar is to be
    compiled, which may take seconds: neither delays the others, nor one API key's grammars
    another's. A conversation that takes long to render goes, after a first share of time, behind
    others of its kind.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._short = ThreadPoolExecutor(2, thread_name_prefix="admissions")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-admissions")
        self._compiling = FairThreads(2, "compiling-admissions")
        self._rendering = FairThreads(2, "rendering-admissions")

    def add(self, request: Request) -> "Future[None]":
        """Add the request to the engine; the future raises what `AsyncEngine.add_request`
        raises.
        """
        is_long = _is_long(request.prompt)
        admission = _Admission(request, LONG_TEMPLATE_SECONDS if is_long else TEMPLATE_SECONDS)
        threads = self._long if is_long else self._short
        begin = partial(self._compiling.submit, request.share) if self._engine.compiles(request) else threads.submit
        self._give_turn(admission, begin)
        return admission

    def close(self) -> None:
        for fair in (self._compiling, self._rendering):
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
            self._engine.add_request(request, admission.template_seconds)
        except TakesLong:
            admission.template_seconds = None
            self._give_turn(admission, partial(self._rendering.submit, request.share))
        except BaseException as error:
            admission.fail(error)
        else:
            admission.set_result(None)


class _Admission(Future[None]):
    """Of one request, over all its turns. It has begun as soon as it is there: whoever cancels it
    hears of its end, as it may be in a turn.
    """

    def __init__(self, request: Request, template_seconds: float) -> None:
        super().__init__()
        self.request = request
        self.template_seconds: float | None = template_seconds
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
