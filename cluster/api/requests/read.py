"""From a body to a `Call`: all errors in a request are found here, before it reaches an engine."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.parse import SMALL_BODY, digest_of, parse_object
from cluster.api.requests.protocol import Addressed, ChatRequest, CompletionRequest
from cluster.api.requests.sampling import check_counts, find_model
from cluster.api.requests.validate import Ignored, ignored_fields, refuse_ignored, validate

TOOLS = b'"tools"'  # whose schemas take a while to look at

Body = TypeVar("Body", bound=Addressed)
Made = TypeVar("Made")


class Asked(NamedTuple, Generic[Body]):
    """A body of any route, validated."""

    body: Body
    model: Model  # that is to answer it
    ignored: tuple[Ignored, ...]
    digest: bytes  # see `digest_of`


class Reader:
    """Small bodies are parsed at once; large ones, and those with tools, one after the other in a
    separate thread, while the loop continues.
    """

    def __init__(self, models: Models, *, strict_fields: bool) -> None:
        """`strict_fields`: fields that would be ignored are rejected."""
        self._models = models
        self._is_strict = strict_fields
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")

    async def chat(self, body: bytes) -> Call:
        """Raises ApiError, InvalidRequest."""
        return await self.read(body, ChatRequest, chat_call)

    async def completion(self, body: bytes) -> Call:
        """Raises ApiError, InvalidRequest."""
        return await self.read(body, CompletionRequest, completion_call)

    async def read(self, body: bytes, kind: type[Body], to_call: Callable[[Body, Model], Call]) -> Call:
        """What `to_call` makes of a body of this kind; raises ApiError, InvalidRequest."""
        return await self.work(body, lambda: self._call(body, kind, to_call))

    async def asked(self, body: bytes, kind: type[Body]) -> Asked[Body]:
        """Of another API than chat and completions. Raises ApiError, InvalidRequest."""
        return await self.work(body, lambda: self._asked(body, kind))

    def going_on(self, asked: Asked[Body], served_by: str) -> Model:
        """The model for a request that goes on from an answer of the model `served_by`; raises
        Unavailable.
        """
        return self._models.going_on(asked.body.model, served_by) or asked.model

    async def work(self, body: bytes, work: Callable[[], Made]) -> Made:
        """What is to be done with a body, which takes the longer the longer the body is."""
        if len(body) <= SMALL_BODY and TOOLS not in body:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _asked(self, body: bytes, kind: type[Body]) -> Asked[Body]:
        fields = parse_object(body)
        model = find_model(fields, self._models)
        asked = validate(kind, fields)
        ignored = ignored_fields(asked)
        if self._is_strict:
            refuse_ignored(ignored)
        return Asked(asked, model, ignored, digest_of(fields))

    def _call(self, body: bytes, kind: type[Body], to_call: Callable[[Body, Model], Call]) -> Call:
        fields = parse_object(body)
        model = find_model(fields, self._models)
        check_counts(fields, model)
        asked = validate(kind, fields)
        ignored = ignored_fields(asked)
        if self._is_strict:
            refuse_ignored(ignored)
        call = to_call(asked, model)
        return call.of_body(model.name, ignored, digest_of(fields) if call.stream else b"")
