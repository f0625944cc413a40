"""Which prompts are worth an engine of their own, and how they are put to it."""

from dataclasses import replace
from typing import NamedTuple

from cluster.gateway.engines.prefixes import Prefixes, beginnings_of
from engine.kv_events.beginnings import PIECE_BYTES
from engine.request import BYTES_PER_TOKEN, NEW, Request
from engine.sampling_params import SamplingParams

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_ENGINES = "those that answer"


class Computed(NamedTuple):
    """What became of a prompt."""

    problem: str | None  # None: its blocks have been stored
    blocks_at: str | None = None  # where they are served to other nodes


class Prompts:
    """One gateway's memory of those that engines have answered."""

    def __init__(self, min_tokens: int) -> None:
        """`min_tokens`: of a prompt's new part, about."""
        self._min_tokens = min_tokens
        self._prefixes = Prefixes()

    def are_worth_it(self, request: Request) -> bool:
        """Whether a long part of the prompt is new. What lies behind all beginnings is."""
        if request.estimated_tokens < self._min_tokens or not _is_cacheable(request):
            return False
        num_known = self._prefixes.known(beginnings_of(request)).get(_ENGINES, 0)
        return request.estimated_tokens - num_known * PIECE_BYTES // BYTES_PER_TOKEN >= self._min_tokens

    def remember(self, request: Request) -> None:
        """From now on no part of the prompt is new."""
        self._prefixes.remember(beginnings_of(request), _ENGINES)


def to_compute(request: Request) -> Request:
    """The prompt alone, for one token that nobody sees."""
    return replace(request, params=_ONE_TOKEN, resume=NEW, timeout=None, trace_headers=None)


def prefilled(request: Request, blocks_at: str | None) -> Request:
    """The same, whose prompt has been computed; `blocks_at`: see `Request`."""
    return replace(request, is_prefilled=True, blocks_at=blocks_at)


def _is_cacheable(request: Request) -> bool:
    """Whether its answer may begin with blocks that others have computed."""
    return request.pooling is None and request.params.prompt_logprobs is None and not any(request.resume.output_ids)
