"""Which prompts are worth an engine of their own, and how they are put to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from engine.kv_events.beginnings import PIECE_BYTES
from engine.request import BYTES_PER_TOKEN, NEW, Request
from engine.sampling_params import SamplingParams

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


class Computed(NamedTuple):
    """What became of a prompt."""

    problem: str | None  # None: its blocks have been stored
    blocks_at: str | None = None  # where they are served to other nodes


def are_worth_it(request: Request, min_tokens: int, num_known: Callable[[Request], int]) -> bool:
    """Whether a long part of the prompt, about `min_tokens`, is new to the engine that would answer
    it now; `num_known`: pieces that this one has. What lies behind all beginnings is new.
    """
    if request.estimated_tokens < min_tokens or not _is_cacheable(request):
        return False
    return request.estimated_tokens - num_known(request) * PIECE_BYTES // BYTES_PER_TOKEN >= min_tokens


def to_compute(request: Request) -> Request:
    """The prompt alone, for one token that nobody sees."""
    return replace(request, params=_ONE_TOKEN, resume=NEW, timeout=None, trace_headers=None)


def prefilled(request: Request, blocks_at: str | None) -> Request:
    """The same, whose prompt has been computed; `blocks_at`: see `Request`."""
    return replace(request, is_prefilled=True, blocks_at=blocks_at)


def _is_cacheable(request: Request) -> bool:
    """Whether its answer may begin with blocks that others have computed."""
    return request.pooling is None and request.params.prompt_logprobs is None and not any(request.resume.output_ids)
