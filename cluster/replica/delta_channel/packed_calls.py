"""What a gateway sends of a call, and what a replica reads: see `calls`.

Requests are pickled, because they hold JSON of any kind. What reads them makes plain values and
instances of CLASSES, so that no frame can have code run.
"""

import io
import pickle
from typing import Any

from engine.errors import InvalidRequest
from engine.pooling import Pooling
from engine.request import Adapter, ChatPrompt, Request, Resume, Share
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs

CLASSES = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (Request, Resume, Share, Adapter, Pooling, ChatPrompt, SamplingParams, StructuredOutputs)
}


def packed_call(number: int, request: Request | None) -> bytes:
    """Raises InvalidRequest for one that holds what no replica would read."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((number, request))
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if (kind.__module__, kind.__qualname__) not in CLASSES:
            raise InvalidRequest(f"the request holds a {kind.__module__}.{kind.__qualname__}, which JSON does not have")
        return NotImplemented


def read_call(payload: bytes) -> tuple[int, Request | None]:
    """Raises pickle.UnpicklingError for anything but a call."""
    try:
        number, request = _Unpickler(io.BytesIO(payload)).load()
    except (ValueError, TypeError, EOFError, AttributeError, IndexError, KeyError) as error:
        raise pickle.UnpicklingError(f"no call: {error}") from None
    if type(number) is not int or not isinstance(request, Request | None):
        kinds = ", ".join(type(each).__name__ for each in (number, request))
        raise pickle.UnpicklingError(f"no call: {kinds}")
    return number, request


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = CLASSES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"a call holds a {module}.{name}")
        return found
