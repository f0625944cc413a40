"""A complete response: the fields that it repeats of its request, its end, and its storage."""

import time

import msgspec

from cluster.api.dialects.one_choice import OneChoice
from cluster.api.dialects.responses_api import answer as shapes
from cluster.api.dialects.responses_api.begun import begun
from cluster.api.dialects.responses_api.fields import ResponsesRequest
from cluster.api.dialects.responses_api.output import Output
from cluster.api.dialects.responses_api.store import Messages, Shelf
from cluster.api.dialects.responses_api.to_chat import messages_of
from cluster.api.requests.call import Call

NOT_STORED = "not stored: the server could not"
_changed = msgspec.structs.replace


class Whole:
    """Of one request."""

    def __init__(self, asked: ResponsesRequest, messages: Messages, shelf: Shelf | None) -> None:
        """`messages`: the conversation without instructions. `shelf`: for the response, if it is to
        be stored.
        """
        self._asked = asked
        self._messages = messages
        self._shelf = shelf

    def begun(self, call: Call, choice: OneChoice) -> shapes.ResponseAnswer:
        """Without output so far."""
        answer = begun(self._asked, call, is_stored=self._shelf is not None)
        fingerprint, version = choice.tally.engine
        return _changed(answer, system_fingerprint=fingerprint, weights_version=version)

    async def ended(self, call: Call, choice: OneChoice, output: Output) -> shapes.ResponseAnswer:
        """Stored, if it is to be; raises ApiError if the choice has not ended."""
        usage = choice.close()
        status = status_of(choice)
        answer = _changed(
            self.begun(call, choice),
            status=status,
            output=output.items,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details=None if status == "completed" else shapes.IncompleteDetails(),
            usage=shapes.ResponseUsage(
                usage.prompt_tokens,
                shapes.InputDetails(choice.num_cached_tokens),
                usage.completion_tokens,
                shapes.OutputDetails(choice.num_reasoning_tokens),
                usage.total_tokens,
            ),
            warnings=call.warnings,
        )
        if self._shelf is None or await self._keep(self._shelf, answer, call.served_by):
            return answer
        told = [] if isinstance(answer.warnings, msgspec.UnsetType) else answer.warnings
        return _changed(answer, store=False, warnings=[*told, NOT_STORED])

    def failed(
        self, call: Call, choice: OneChoice, output: Output, failure: shapes.ResponseFailure
    ) -> shapes.ResponseAnswer:
        """With the items that were whole."""
        answer = self.begun(call, choice)
        return _changed(answer, status="failed", output=output.items, error=failure, warnings=call.warnings)

    async def _keep(self, shelf: Shelf, answer: shapes.ResponseAnswer, served_by: str) -> bool:
        messages = [*self._messages, *messages_of(answer.output)]
        return await shelf.keep(answer.id, msgspec.json.encode(answer), messages, served_by)


def status_of(choice: OneChoice) -> shapes.Status:
    """Of a choice that has ended."""
    return "incomplete" if choice.finish_reason == "length" else "completed"
