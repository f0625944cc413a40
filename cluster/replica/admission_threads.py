"""The threads in which an engine replica adds requests: tokenizing in its event loop would delay
deltas.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from cluster.replica.fair_threads import FairThreads
from engine.frontend.async_engine import AsyncEngine
from engine.request import ChatPrompt, Prompt, Request

LONG_PROMPT = 64 << 10  # characters; they take a tenth of a second


class AdmissionThreads:
    """Long prompts have one thread of their own, and so have requests whose grammar is to be
    compiled, which may take seconds: neither delays the others, nor one API key's grammars
    another's.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._short = ThreadPoolExecutor(2, thread_name_prefix="admissions")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-admissions")
        self._compiling = FairThreads(2, "compiling-admissions")

    def add(self, request: Request) -> "Future[None]":
        """Add the request to the engine; the future raises what `AsyncEngine.add_request`
        raises.
        """
        if self._engine.compiles(request):
            return self._compiling.submit(request.share, partial(self._engine.add_request, request))
        threads = self._long if _is_long(request.prompt) else self._short
        return threads.submit(self._engine.add_request, request)

    def close(self) -> None:
        self._compiling.close()
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def _is_long(prompt: Prompt) -> bool:
    """Whether tokenizing the prompt takes long."""
    match prompt:
        case str():
            return len(prompt) > LONG_PROMPT
        case ChatPrompt():
            return prompt.num_characters > LONG_PROMPT
        case _:
            return False
