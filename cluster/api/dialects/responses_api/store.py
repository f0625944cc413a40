"""Stored responses, which later requests can continue."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from cluster.api.dialects.responses_api.answer import ResponseDeleted
from cluster.api.dialects.responses_api.items import OUTPUT, Item, ReferenceItem, SentItem
from cluster.api.dialects.responses_api.output import response_of
from cluster.api.errors import ApiError
from cluster.api.requests.fields import as_brief_json


class ResponseStore(Protocol):
    """Keeps responses for all gateways, for a while. `owner`: of whom they are; nobody else finds
    them.
    """

    def wake(self) -> None:
        """One is going to be kept soon."""

    async def keep(self, owner: bytes, response_id: str, record: bytes) -> bool:
        """Whether it is stored; one may be too large, or the store not answer."""

    async def find(self, owner: bytes, response_id: str) -> bytes | None:
        """The record, if it is still stored; raises ApiError if the store does not answer."""

    async def forget(self, owner: bytes, response_id: str) -> bool:
        """Whether it was stored; raises as `find`."""


Messages = list[dict[str, Any]]


class ResponseRecord(msgspec.Struct, frozen=True):
    """What is stored of a response."""

    response: msgspec.Raw  # as it was answered
    messages: Messages  # the conversation with the answer, as those of chat, without instructions
    served_by: str = ""  # the model's own name


class _Output(msgspec.Struct, frozen=True):
    output: list[dict[str, Any]]


class _OutputRecord(msgspec.Struct, frozen=True):
    """The part of a `ResponseRecord` that is the answer; all else is skipped."""

    response: _Output


class Shelf:
    """One owner's part of the store; there is none where nothing is stored."""

    def __init__(self, store: ResponseStore | None, owner: bytes) -> None:
        self._store = store
        self._owner = owner

    @property
    def is_there(self) -> bool:
        return self._store is not None

    def wake(self) -> None:
        """See `ResponseStore`."""
        if self._store is not None:
            self._store.wake()

    async def keep(self, response_id: str, response: bytes, messages: Messages, served_by: str) -> bool:
        """See `ResponseStore`; `response`: JSON."""
        record = ResponseRecord(msgspec.Raw(response), messages, served_by)
        return self._store is not None and await self._store.keep(self._owner, response_id, msgspec.json.encode(record))

    async def response(self, response_id: str) -> bytes:
        """JSON; raises ApiError if it is not stored."""
        return bytes((await self._find(response_id, None)).response)

    async def items(self, sent: str | Sequence[SentItem]) -> str | list[Item]:
        """The input with the items that it names; raises ApiError if one is not stored."""
        if isinstance(sent, str):
            return sent
        outputs: dict[str, dict[str, Any]] = {}  # of responses: their items, by id
        items: list[Item] = []
        for index, item in enumerate(sent):
            if not isinstance(item, ReferenceItem):
                items.append(item)
                continue
            response_id = response_of(item.id)
            if response_id not in outputs:
                outputs[response_id] = {found["id"]: found for found in await self._output(response_id)}
            if item.id not in outputs[response_id]:
                raise _unknown_item(item.id, f"input[{index}].id")
            items += OUTPUT.validate_python([outputs[response_id][item.id]])
        return items

    async def earlier(self, response_id: str | None) -> ResponseRecord | None:
        """A previous response, if there is to be one; raises ApiError if it is not stored."""
        return None if response_id is None else await self._find(response_id, "previous_response_id")

    async def forget(self, response_id: str) -> bytes:
        """What tells of it, as JSON; raises ApiError if it was not stored."""
        if self._store is None or not await self._store.forget(self._owner, response_id):
            raise _unknown(response_id, None)
        return msgspec.json.encode(ResponseDeleted(response_id))

    async def _output(self, response_id: str) -> list[dict[str, Any]]:
        record = None if self._store is None else await self._store.find(self._owner, response_id)
        return [] if record is None else msgspec.json.decode(record, type=_OutputRecord).response.output

    async def _find(self, response_id: str, param: str | None) -> ResponseRecord:
        record = None if self._store is None else await self._store.find(self._owner, response_id)
        if record is None:
            raise _unknown(response_id, param)
        return msgspec.json.decode(record, type=ResponseRecord)


def _unknown(response_id: str, param: str | None) -> ApiError:
    message = f"There is no response {as_brief_json(response_id)} here: it was not stored, or no longer is"
    return ApiError(404, message, code="response_not_found", param=param)


def _unknown_item(item_id: str, param: str) -> ApiError:
    reason = "its response was not stored, or no longer is: send the item itself"
    return ApiError(
        404, f"There is no item {as_brief_json(item_id)} here; {reason}", code="item_not_found", param=param
    )
