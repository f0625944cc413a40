"""The answer of POST /v1/responses, from deltas, whole or as events."""

from contextlib import aclosing

import msgspec

from cluster.api.dialects.one_choice import Events, OneChoice, Updates, deltas_of
from cluster.api.dialects.responses_api import answer as shapes
from cluster.api.dialects.responses_api.output import Output
from cluster.api.dialects.responses_api.to_chat import NAMES
from cluster.api.dialects.responses_api.whole import Whole, status_of
from cluster.api.errors import FORESEEN, as_api_error
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.stream import named_event


class ResponseAnswering:
    """Of one request."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole

    async def result(self, call: Call, _model: Model, updates: Updates) -> bytes:
        """The complete answer as JSON; raises ApiError, InvalidRequest."""
        choice, output = _empty(call)
        async with aclosing(deltas_of(choice, updates, NAMES)) as parts:
            async for deltas in parts:
                for delta in deltas:
                    list(output.add(delta))
        list(output.end(status_of(choice)))
        return msgspec.json.encode(await self._whole.ended(call, choice, output))

    async def events(self, call: Call, _model: Model, updates: Updates, plain: PlainEvents) -> Events:
        """The answer's events, one or more per delta, each with its number, but for those that
        `plain` writes itself. Raises ApiError, InvalidRequest before the first one; a later failure
        is an event, the last one.
        """
        choice, output = _empty(call)
        has_begun = False

        def plain_event(text: str, number: int) -> bytes:
            return named_event(output.plain_event(text, number))

        try:
            async with aclosing(deltas_of(choice, updates, NAMES)) as parts:
                async for deltas in parts:
                    events = [] if has_begun else self._first(call, choice, output)
                    has_begun = True
                    events += [event for delta in deltas for event in output.add(delta)]
                    if choice.is_plain and output.has_open_text:
                        plain.open_numbered(choice.tally, plain_event, output)
                    yield b"".join(map(named_event, events))
            yield b"".join(map(named_event, await self._last(call, choice, output)))
        except FORESEEN as error:
            if not has_begun:
                raise
            known = as_api_error(error)
            failed = self._whole.failed(call, choice, output, shapes.ResponseFailure(known.message, known.code))
            yield named_event(shapes.ResponseFailed(sequence_number=output.number(), response=failed))

    def _first(self, call: Call, choice: OneChoice, output: Output) -> list[shapes.ResponseEvent]:
        answer = self._whole.begun(call, choice)
        return [
            shapes.ResponseCreated(sequence_number=output.number(), response=answer),
            shapes.ResponseInProgress(sequence_number=output.number(), response=answer),
        ]

    async def _last(self, call: Call, choice: OneChoice, output: Output) -> list[shapes.ResponseEvent]:
        events = list(output.end(status_of(choice)))
        whole = await self._whole.ended(call, choice, output)
        ended = shapes.ResponseCompleted if whole.status == "completed" else shapes.ResponseIncomplete
        return [*events, ended(sequence_number=output.number(), response=whole)]


def _empty(call: Call) -> tuple[OneChoice, Output]:
    choice = OneChoice(call)
    return choice, Output(call.id, logprobs=choice.text_logprobs)
