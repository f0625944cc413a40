"""The threads in which an engine replica adds requests: tokenizing in its event loop would delay
deltas.
"""

from concurrent.futures import Future, ThreadPoolExecutor

from engine.frontend.async_engine import AsyncEngine
from engine.request import ChatPrompt, Prompt, Request

LONG_PROMPT = 64 << 10  # characters; they take a tenth of a second


class AdmissionThreads:
    """Long prompts have one thread of their own, and so have requests with a structured output,
    whose grammar may take seconds to compile: neither delays the others.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._short = ThreadPoolExecutor(2, thread_name_prefix="admissions")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-admissions")
        self._compiling = ThreadPoolExecutor(2, thread_name_prefix="compiling-admissions")

    def add(self, request: Request) -> "Future[None]":
        """Add the request to the engine; the future raises what `AsyncEngine.add_request`
        raises.
        """
        threads = self._long if _is_long(request.prompt) else self._short
        if request.params.structured_outputs is not None:
            threads = self._compiling
        return threads.submit(self._engine.add_request, request)

    def close(self) -> None:
        for threads in (self._short, self._long, self._compiling):
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
