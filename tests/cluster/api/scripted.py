"""A `Service` that says what its script says, and a real server around it."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import uvicorn
from starlette.types import ASGIApp

from cluster.api.app import build
from cluster.api.dialects.responses_api.store import ResponseStore
from cluster.api.errors import ApiError, Unavailable
from cluster.api.models.model import Model, Models
from cluster.api.options import HttpOptions
from cluster.api.requests.body import Bodies
from cluster.api.responses.resuming.streams import StreamStore
from cluster.api.service import NOBODY, Arriving, Shortcut, WorkerKiller
from cluster.metrics.counters import Counters
from engine.admission.queue_limits import Load, Room
from engine.errors import Overloaded
from engine.outputs import CompletionOutput, Logprob, RequestOutput, Tokens
from engine.request import NO_KEY, ChatPrompt, Prompt, Request, Share
from engine.sampling_params import SamplingParams

MODEL = "demo/model"
MAX_MODEL_LEN = 64
VOCAB_SIZE = 1000
PROMPT_IDS = [7, 8, 9]
FIRST_ID = 100  # of the tokens that are said; their place in the script is added


@dataclass
class Script:
    """Says `texts`, a delta each; then fails with `error`, or waits for ever, or ends, finished or
    not.
    """

    texts: list[str] = field(default_factory=lambda: ["Hello", ",", " wörld"])
    error: Exception | None = None
    waits: bool = False
    finishes: bool = True
    finish_reason: str = "stop"
    error_code: str | None = None
    stop_reason: int | str | None = None
    prompt_text: str | None = "<7><8><9>"
    waiting: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)


POOLED = np.array([3, 4, 12], "<f4").tobytes()  # what is answered to a request for numbers
FINGERPRINT = "fp_scripted"


class ScriptedService:
    """Scripts are found by the prompt's text, of a conversation by its last message's."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.generated: list[Request] = []
        self.problems: list[str] = []
        self.asked_room: list[tuple[Load, float | None]] = []
        self.arriving: list[Arriving] = []  # at each such question
        self.let_in: list[bool] = []  # at each such question
        self.is_full = False
        self.queue_seconds = 0.0  # that a request would wait
        self.full_of: str | None = None  # a key's name
        self.weights_version: str | None = None  # of all answers
        self.told_room: Room | None = None
        self.least_full = 0.0  # tokens of a prompt, from which on `is_full` counts
        self.num_by_shortcut = 0  # deltas

    async def generate(self, request: Request, shortcut: Shortcut | None = None) -> AsyncGenerator[RequestOutput, None]:
        async with aclosing(self._generate(request, shortcut)) as outputs:
            async for output in outputs:
                output.weights_version = self.weights_version
                yield output

    async def _generate(self, request: Request, shortcut: Shortcut | None) -> AsyncGenerator[RequestOutput, None]:
        self.generated.append(request)
        script = self.scripts.get(text_of(request.prompt), Script())
        if request.pooling is not None and script.error is None:
            choice = CompletionOutput(0, "", [], finish_reason="stop", pooled=_numbers(request))
            yield RequestOutput(request.id, 0, PROMPT_IDS, [choice], finished=True, fingerprint=FINGERPRINT)
            return
        num_known = sum(map(len, request.resume.output_ids))
        try:
            for step, text in list(enumerate(script.texts))[num_known:]:
                is_last = step == len(script.texts) - 1 and script.finishes and not script.error and not script.waits
                is_plain = step > num_known and not is_last and request.params.logprobs is None
                if is_plain and shortcut is not None and shortcut(text, [FIRST_ID + step]):
                    self.num_by_shortcut += 1
                else:
                    yield _output(request.id, request.params, step, text, script, is_last)
            if script.error is not None:
                raise script.error
            if script.waits:
                script.waiting.set()
                await asyncio.Event().wait()
        finally:
            script.closed.set()

    async def tokenize(self, request: Request, *, with_texts: bool) -> Tokens:
        self.generated.append(request)
        if (error := self.scripts.get(text_of(request.prompt), Script()).error) is not None:
            raise error
        return Tokens(PROMPT_IDS, [f"<{token_id}>" for token_id in PROMPT_IDS] if with_texts else None)

    async def detokenize(self, token_ids: list[int]) -> str:
        return "".join(f"<{token_id}>" for token_id in token_ids)

    async def tokenizer_settings(self) -> dict[str, Any]:
        return {"eos_token": "<end>", "chat_template": "{{ messages }}"}

    def check_room(
        self,
        more: Load,
        seconds: float | None = None,
        share: Share = NO_KEY,
        arriving: Arriving = NOBODY,
        *,
        is_let_in: bool = False,
    ) -> None:
        self.let_in.append(is_let_in)
        self.asked_room.append((more, seconds))
        self.arriving.append(arriving)
        if share.key is not None and share.key == self.full_of:
            raise ApiError(429, "full of this key's", code="rate_limit_exceeded")
        if seconds is not None and seconds < self.queue_seconds:
            raise Overloaded("the queue takes longer", retry_after=7, limit="timeout")
        if self.is_full and more.num_tokens >= self.least_full:
            raise Overloaded("full", retry_after=7, limit="max_num_queued_reqs")

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        return self.told_room

    async def health(self) -> list[str]:
        return self.problems

    async def deep_health(self) -> list[str]:
        return self.problems

    async def engines(self) -> list[dict[str, Any]]:
        return [{"replica": "one", "problem": None}]

    def held(self) -> dict[str, int]:
        return {"requests": 2, "waiting": 1}

    async def metrics(self) -> bytes:
        return b"# none\n"

    async def trace(self) -> AsyncGenerator[bytes, None]:
        if self.problems:
            raise Unavailable(self.problems[0], code="not_ready", retry_after=1)
        for piece in (b'{"traceEvents":', b'[{"name":"step 0"}]}'):
            yield piece

    async def view(self, chosen: str | None = None) -> list[dict[str, Any]]:
        return [{"replica": "one", "view": {"steps": []}}]

    async def why(self, request_id: str) -> dict[str, Any] | None:
        told = {"seconds": {"queue": 0.25, "decode": 0.75}, "draft_tokens": 8, "accepted_tokens": 6}
        told |= {"accepted_tokens_per_pos": [4, 2]}
        return told if request_id == "known" else None


def _numbers(request: Request) -> bytes:
    """Of documents: "yes" is the likelier, the shorter they are."""
    if request.pooling is None or not request.pooling.token_ids:
        return POOLED
    document = text_of(request.prompt).rpartition("<Document>: ")[2].partition("<|im_end|>")[0]
    return np.array([-len(document), -3], "<f4").tobytes()


def text_of(prompt: Prompt) -> str:
    if isinstance(prompt, ChatPrompt):
        return prompt.messages[-1]["content"]
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _output(
    request_id: str, params: SamplingParams, step: int, text: str, script: Script, is_last: bool
) -> RequestOutput:
    token_id = FIRST_ID + step
    logprobs = None if params.logprobs is None else [_position(token_id, text, params.logprobs)]
    choices = [
        CompletionOutput(
            index,
            text if index == 0 else text.upper(),
            [token_id],
            step,
            logprobs=logprobs,
            finish_reason=script.finish_reason if is_last else None,
            stop_reason=script.stop_reason if is_last else None,
        )
        for index in range(params.n)
    ]
    of_prompt: list[Any] | None = None
    if params.prompt_logprobs is not None and step == 0:
        of_prompt = [None, *(_position(known, f"<{known}>", params.prompt_logprobs) for known in PROMPT_IDS[1:])]
    return RequestOutput(
        request_id,
        0,
        PROMPT_IDS,
        choices,
        is_last,
        prompt=script.prompt_text,
        prompt_logprobs=of_prompt,
        num_cached_tokens=2,
        error="NaN in a row" if is_last and script.finish_reason == "error" else None,
        error_code=script.error_code,
        fingerprint=FINGERPRINT,
    )


def _position(token_id: int, text: str, count: int) -> dict[int, Logprob]:
    """The token as the second most likely one, after `count` others or as many as there are."""
    found = {token_id: Logprob(-1.5, 2, text.encode())}
    ranks = [rank for rank in range(1, count + 1) if rank != 2]
    return found | {
        500 + rank: Logprob(float("-inf") if rank > 3 else -float(rank), rank, f"r{rank}".encode()) for rank in ranks
    }


@dataclass
class Running:
    service: ScriptedService
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(
    *,
    http: str | type[asyncio.Protocol] = "httptools",
    streams: StreamStore | None = None,
    kept: ResponseStore | None = None,
    bodies: Bodies | None = None,
    counters: Counters | None = None,
    killer: WorkerKiller | None = None,
    model: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Iterator[Running]:
    """The application under uvicorn in a thread of its own, on a free port of 127.0.0.1. `model`:
    more fields of its `Model`; `options`: those of `HttpOptions`.
    """
    service = ScriptedService()
    whole = Model(name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE, **model)
    app = build(
        service,
        Models.one(service, whole),
        HttpOptions(**options),
        streams=streams,
        kept=kept,
        bodies=bodies,
        counters=counters,
        killer=killer,
    )
    with listening(app, http=http) as port:
        yield Running(service, port)


@contextmanager
def listening(
    app: ASGIApp, address: str = "127.0.0.1", *, http: str | type[asyncio.Protocol] = "httptools"
) -> Iterator[int]:
    """Any application under uvicorn in a thread of its own; the port."""
    listener = socket.create_server((address, 0))  # clients may connect from here on
    config = uvicorn.Config(app, http=http, lifespan="off", log_level="critical")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
