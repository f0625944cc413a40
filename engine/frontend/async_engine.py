"""The engine for callers in any thread."""

from collections.abc import AsyncGenerator

from engine.checkpoint.embedding import embedding_of
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.executor import Executor, Weights
from engine.frontend.engine_thread import EngineThread
from engine.frontend.observer import Observer
from engine.frontend.streams import Streams
from engine.outputs import RequestOutput, Sink
from engine.request import Request
from engine.text.prompt import arrive


class AsyncEngine:
    """Owns an engine and the one thread that touches it; callers post commands, which are
    executed between steps.

    Outputs go to `on_outputs`, called in the engine's thread once a step with the deltas of all
    requests, or, for requests begun by `generate`, to that caller's stream.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        on_outputs: Sink | None = None,
        weights: Weights | None = None,
    ) -> None:
        """`weights`: that the executor starts with; None: those that are configured."""
        self.config = config
        parts = Parts.load(config, executor)
        self.model_config = parts.model_config
        self.tokenizer = parts.tokenizer
        self._engine = LLMEngine(parts)
        self._engine.epochs.weights = weights
        self.embedding = embedding_of(config)
        self._executor = executor
        self._on_outputs = on_outputs
        self._streams = Streams(self.add_request, self.abort)
        self._thread = EngineThread(self._engine, self._deliver)
        self.observer = Observer(self._thread)
        self.controls = self._thread.controls

    @property
    def max_model_len(self) -> int:
        return self._engine.cache_size.max_model_len

    def start(self, sleep_level: int = 0) -> None:
        """Load the model and start the thread; blocks. Raises InvalidConfig or WorkerLost.
        `sleep_level`: see `EngineThread.start`.
        """
        self._thread.start(sleep_level)

    def shutdown(self) -> None:
        """Stop the thread, end running requests with an error, stop the workers. Idempotent."""
        self._thread.stop()
        self._executor.shutdown()
        self._engine.close()

    def add_request(
        self, request: Request, template_seconds: float | None = None, grammar_seconds: float | None = None
    ) -> None:
        """Tokenize, check and queue, from any thread; its id must be unique among running requests.

        Raises InvalidRequest, InputProcessingError, Overloaded or EngineDead at once, TakesLong
        if the chat template takes more than `template_seconds` of processor time, GrammarTakesLong
        if the grammar takes more than `grammar_seconds`.
        """
        self.check_health()
        self.check_queue(request)
        arrival = arrive(request, self.tokenizer, self.max_model_len, template_seconds)
        self._thread.add(self._engine.admission.check(arrival, grammar_seconds))

    def compiles(self, request: Request) -> bool:
        """Whether `add_request` will compile a grammar, which may take seconds."""
        return self._engine.admission.compiles(request)

    def prompt_ids(self, request: Request) -> list[int]:
        """The token ids that the request's prompt has, from any thread; raises InvalidRequest,
        InputProcessingError.
        """
        return arrive(request, self.tokenizer, self.max_model_len).prompt_token_ids

    def check_queue(self, request: Request) -> None:
        """Raises Overloaded if too much waits already, from what is known without tokenizing."""
        self._thread.check_queue(request)

    def abort(self, request_id: str) -> None:
        """Abort a request; from any thread; unknown ids are ignored."""
        self._thread.abort(request_id)

    def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """See `Streams.generate`."""
        return self._streams.generate(request)

    def check_health(self) -> None:
        """Raise EngineDead if no request can be answered any more."""
        self._thread.check_health()

    @property
    def is_dead(self) -> bool:
        """Whether no request can be answered any more."""
        return self._thread.is_dead

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        self._streams.deliver(outputs)
        if self._on_outputs is not None and outputs:
            self._on_outputs(outputs)
