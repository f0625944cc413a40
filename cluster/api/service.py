"""The interface through which the HTTP layer gets its requests answered."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, Protocol

from cluster.api.batches import Batch, FileObject, Owner
from engine.admission.queue_limits import NOTHING, Load, Room
from engine.outputs import RequestOutput, Tokens
from engine.request import NO_KEY, Request, Share

# Only for the server's own page, in a browser on its machine: checked before any route.
KILL_PATH = "/debug/kill_worker"
# Takes what a delta says that is the only choice's next text, and the tokens it is of; False if the
# delta must come from the generator instead.
Shortcut = Callable[[str, Sequence[int]], bool]


class Arriving(NamedTuple):
    """What is being read: of all, and of these, of the API key that asks."""

    load: Load = NOTHING
    of_key: Load = NOTHING


NOBODY = Arriving()


class Service(Protocol):
    """Answers requests to one model; the gateway is one."""

    def generate(self, request: Request, shortcut: Shortcut | None = None) -> AsyncGenerator[RequestOutput, None]:
        """The request's deltas, until each of its `params.n` choices has a finish_reason; for a
        request that resumes, of the tokens after those it has.

        The first delta carries prompt_token_ids, and prompt_logprobs if requested; `prompt` is the
        prompt's text, decoded if it came as token ids. Closing the generator aborts the request.
        While a reader waits for the generator's next delta (not the first), a delta that is only
        text may be given to `shortcut` instead: then the reader does not wake.
        Raises, before the first delta, InvalidRequest for what only the engine can know (a prompt
        too long: `context_length_exceeded`) or Overloaded, and at any time InputProcessingError,
        EngineDead, FingerprintChanged, RequestQuarantined or an ApiError.
        """

    async def tokenize(self, request: Request, *, with_texts: bool) -> Tokens:
        """The tokens of the request's prompt, which is not answered; `with_texts` as the vocabulary
        writes them, too. Raises as `generate`, before its first delta.
        """

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of all of them; raises as `tokenize`."""

    async def tokenizer_settings(self) -> dict[str, Any]:
        """As `Tokenizer.settings`; raises as `tokenize`."""

    def check_room(
        self,
        more: Load,
        seconds: float | None = None,
        share: Share = NO_KEY,
        arriving: Arriving = NOBODY,
        *,
        is_let_in: bool = False,
    ) -> None:
        """Raises ApiError if too much of what waits is of its key; Overloaded if `more` has no room
        beside what waits already and what is `arriving`, or would wait for more than `seconds`. To
        be asked before a request is read, and again before `generate`, when it `is_let_in`: that
        the queue takes longer now than its limit is no reason any more.
        """

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        """That is left beside what is `arriving`; None if the queue is far from full. `by_key`:
        keys share the queue, and how long one waits is not how long it is.
        """


class Application(Protocol):
    """All that is served; with one model, its `Service` is one, too."""

    def check_room(
        self, more: Load, seconds: float | None = None, *, share: Share = NO_KEY, arriving: Arriving = NOBODY
    ) -> None:
        """Raises Overloaded or ApiError if no service has room; see `Service.check_room`."""

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        """See `Service.room`: that all of them have."""

    async def health(self) -> list[str]:
        """Problems, one line each; empty if requests can be answered, be it by one model."""

    async def deep_health(self) -> list[str]:
        """As `health`, after every rank of every engine has computed a token."""

    async def engines(self) -> list[dict[str, Any]]:
        """Each engine's condition: `replica`, `node`, `pid`, `problem` (None or a line) and its
        `stats`.
        """

    def held(self) -> dict[str, int]:
        """`requests` that this gateway has now, and how many of them are `waiting`: have no token
        yet.
        """

    async def metrics(self) -> bytes:
        """The figures of the whole application, as Prometheus reads them."""

    def trace(self) -> AsyncGenerator[bytes, None]:
        """The last steps of every engine, as pieces of a Chrome trace. Raises Unavailable."""

    async def view(self, chosen: str | None = None) -> list[dict[str, Any]]:
        """Each engine's condition. Of the chosen replica, or the first ones, also its last steps,
        its requests and the blocks of its cache: no more than some hundred of each, and half a
        second old at most.
        """

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """The `Why` of a running or recently finished request; None for an unknown or forgotten
        one.
        """


class WorkerKiller(Protocol):
    """For demonstrations."""

    async def kill_worker(self) -> dict[str, Any]:
        """End the process of some rank of an engine, as kill -9 does; its `replica`, `rank` and
        `pid`. Raises Unavailable if there is none now.
        """


class AdapterLoader(Protocol):
    """Changes which adapters requests may name."""

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """From a folder. Every rank of every engine has computed with it when this returns, and
        every gateway takes it. Raises InvalidRequest, Unavailable.
        """

    async def unload(self, name: str) -> None:
        """Requests that have it go on. Raises ApiError."""


class Batches(Protocol):
    """Keeps files, and has them answered. Methods block, and raise ApiError or OSError."""

    def create_file(self, owner: Owner, filename: str, data: IO[bytes]) -> FileObject:
        """Reads `data` to its end."""

    def files(self, owner: Owner) -> list[FileObject]:
        """Newest first."""

    def file(self, owner: Owner, file_id: str) -> FileObject: ...

    def content(self, owner: Owner, file_id: str) -> Iterator[bytes]:
        """Of a file that there is; in pieces."""

    def delete_file(self, owner: Owner, file_id: str) -> None: ...

    def create(self, owner: Owner, input_file_id: str, endpoint: str, metadata: dict[str, str] | None) -> Batch: ...

    def batches(self, owner: Owner) -> list[Batch]:
        """Newest first."""

    def batch(self, owner: Owner, batch_id: str) -> Batch: ...

    def cancel(self, owner: Owner, batch_id: str) -> Batch: ...
