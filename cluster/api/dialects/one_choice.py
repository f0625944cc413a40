"""The only choice of a chat: its deltas, token counts and the reason of its end."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cluster.api.dialects.naming import Names, named
from cluster.api.requests.call import Call
from cluster.api.responses.chat_message import ChoiceParser
from cluster.api.responses.generation import Tally, Update, finish_reason
from cluster.api.responses.logprobs import chat_logprobs
from cluster.api.responses.protocol import ChatDelta, FinishReason, TokenLogprob, Usage
from engine.outputs import CompletionOutput

Updates = AsyncGenerator[Update, None]
Events = AsyncGenerator[bytes, None]


class OneChoice:
    """Takes updates. The deltas, joined, do not depend on how the text was cut into updates: a
    whole answer is made of the same ones as a stream.
    """

    def __init__(self, call: Call) -> None:
        self.tally = Tally(call)
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0  # of the prompt's
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._call = call
        self._prompt_ids: list[int] = []
        self._parser: ChoiceParser | None = None
        self._reasons = False
        self._num_tokens = 0  # up to the end of the reasoning, if there is any
        self._has_reasoned = False
        self._logprobs: list[TokenLogprob] = []  # of all tokens, if they were asked for

    def add(self, update: Update) -> list[ChatDelta]:
        """Raises ApiError if the choice has failed."""
        self.tally.add(update)
        self._prompt_ids = self._prompt_ids or update.output.prompt_token_ids
        self.num_prompt_tokens = max(self.num_prompt_tokens, len(self._prompt_ids))
        self.num_cached_tokens = max(self.num_cached_tokens, update.output.num_cached_tokens)
        return [delta for piece in update.output.outputs for delta in self._deltas(piece)]

    def _deltas(self, piece: CompletionOutput) -> list[ChatDelta]:
        if self._parser is None:
            self._parser = ChoiceParser(self._call.form, self._prompt_ids, self._call.id, 0)
        self._count(piece.token_ids)
        if (count := self._call.params.logprobs) is not None:
            self._logprobs += chat_logprobs(piece.token_ids, piece.logprobs or [], count).content
        deltas = self._parser.deltas(piece.text, is_end=piece.finished)
        self._reasons |= any(isinstance(delta.reasoning, str) for delta in deltas)
        if piece.finished:
            self.finish_reason = self._parser.finish_reason(finish_reason(piece))
            self.stop_reason = piece.stop_reason
        return deltas

    def _count(self, token_ids: list[int]) -> None:
        if self._call.form.reasoning_ids is None or self._has_reasoned:
            return
        _, end = self._call.form.reasoning_ids
        self._has_reasoned = end in token_ids
        self._num_tokens += token_ids.index(end) + 1 if self._has_reasoned else len(token_ids)

    @property
    def is_plain(self) -> bool:
        """Whether all further text is content, as it is."""
        return self._parser is not None and self._parser.is_plain

    @property
    def num_reasoning_tokens(self) -> int:
        """With the tokens around the reasoning."""
        return self._num_tokens if self._reasons else 0

    def text_logprobs(self, begin: int) -> list[TokenLogprob]:
        """Of the tokens behind the reasoning, from this one on."""
        return self._logprobs[self.num_reasoning_tokens + begin :]

    def close(self) -> Usage:
        """The token counts of the ended choice; raises ApiError if it has not ended."""
        return self.tally.close()


async def deltas_of(choice: OneChoice, updates: Updates, names: Names) -> AsyncGenerator[list[ChatDelta], None]:
    """Those of each update. Raises ApiError, and InvalidRequest with the other API's names."""
    with named(names):
        async with aclosing(updates):
            async for update in updates:
                yield choice.add(update)
