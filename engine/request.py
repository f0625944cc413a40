"""A request: made at the edge, and passed whole to all code that reads a field of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from engine.pooling import Pooling
from engine.sampling_params import INT64_MAX, SamplingParams, quick_state


@quick_state
@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the chat template: each message a `role` (system, user, assistant or tool)
    and its `content`, and what else the template knows, for example `tool_calls`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None  # as the OpenAI API has them
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the template, by name
    continues: bool = False  # the answer is the rest of the last message, an assistant's

    @property
    def num_characters(self) -> int:
        """Of all texts in it."""
        return sum(map(_num_characters, (*self.messages, *(self.tools or ()), self.variables)))


def _num_characters(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case dict():
            return sum(map(_num_characters, value.values()))
        case list():
            return sum(map(_num_characters, value))
        case _:
            return 0


Prompt = str | list[int] | ChatPrompt  # a list: of token ids

BYTES_PER_TOKEN = 4  # of a text in most languages, about


@quick_state
@dataclass(frozen=True, slots=True)
class Resume:
    """The part of a request's answer that exists already; empty for a new request."""

    attempt: int = 0  # number of engine replicas that were tried before
    output_ids: Sequence[Sequence[int]] = ()  # tokens of each choice, which count as outputs; empty if there are none
    cumulative_logprobs: Sequence[float] = ()  # of each choice in output_ids
    fingerprint: str | None = None  # of the engine that the tokens came from; only engines with the same may continue
    is_suspect: bool = False  # engine processes died with it in flight, and it gained no token there
    # Where the engine that hands it over has left its blocks, see `engine.offload.block_files`;
    # empty: in a folder that all have; None: nowhere.
    blocks_at: str | None = None


NEW = Resume()


@quick_state
@dataclass(frozen=True, slots=True)
class Share:
    """The API key that a request came with, as the waiting queue knows it."""

    key: str | None = None  # its name; requests without one count as one key
    weight: float = 1.0  # above 0; while keys wait, they are given tokens in proportion to it


NO_KEY = Share()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter of the model: its name is for people, its digest says which one it is."""

    name: str
    folder: str  # in PEFT's layout; every node has it there
    digest: str  # of its files, in hexadecimal: `parallel.spec.adapter`
    rank: int  # of its linear with the highest


@quick_state
@dataclass(frozen=True, slots=True)
class Request:
    """Pickled between processes: plain values only."""

    id: str  # unique among the running requests of its engine
    prompt: Prompt
    params: SamplingParams
    _: KW_ONLY
    pooling: Pooling | None = None  # asked for instead of tokens
    adapter: Adapter | None = None  # that its tokens are computed with
    priority: int = 0  # lower is served first if scheduling_policy is "priority"
    cache_salt: str | None = None  # only requests of the same salt share cached prefixes
    share: Share = NO_KEY
    timeout: float | None = None  # seconds for the whole answer from the request's arrival on, here or at a gateway
    joins_deltas: bool = True  # a slow reader may get the deltas of several steps joined
    trace_headers: Mapping[str, str] | None = None  # W3C's traceparent and tracestate, of the span that this is part of
    resume: Resume = NEW
    max_prompt_tokens: int | None = None  # of a longer prompt only the last so many are read
    is_prefilled: bool = False  # another engine has stored the prompt's blocks where this one finds them, or has tried
    blocks_at: str | None = None  # where that engine serves them to other nodes; None: in a folder that all have
    beginnings: bytes = b""  # a router's names for the prompt's, one after the other: `engine.kv_events.beginnings`
    add_special_tokens: bool | None = None  # those that the tokenizer puts around a text; None: not to a conversation
    ends_with_context: bool = False  # `max_tokens` may exceed what the context leaves: the answer ends there, then

    @property
    def estimated_tokens(self) -> int:
        """About how many tokens its prompt has, without tokenizing it."""
        return min(estimated_tokens(self.prompt), self.max_prompt_tokens or INT64_MAX)


def estimated_tokens(prompt: Prompt) -> int:
    """About how many tokens a prompt has, without tokenizing it; of ids their number."""
    match prompt:
        case str():
            return len(prompt if prompt.isascii() else prompt.encode(errors="surrogatepass")) // BYTES_PER_TOKEN + 1
        case ChatPrompt():
            return prompt.num_characters // BYTES_PER_TOKEN + 1
        case _:
            return len(prompt)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has arrived at an engine, its prompt as token ids."""

    request: Request
    prompt_token_ids: list[int]
    prompt: str | None = None  # a completion's as text; a conversation has none
    time: float = field(default_factory=time.monotonic)  # seconds of this process' time.monotonic()
    matcher: Any = None  # a `Matcher` of `engine.grammars.interface`, if its grammar has been compiled

    def with_matcher(self, matcher: Any) -> "Arrival":
        return replace(self, matcher=matcher)
