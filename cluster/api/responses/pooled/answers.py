"""The answers of the routes that answer with numbers, complete."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from cluster.api.answers.form import WantedEmbeddings, WantedRanking
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Tally, Update
from cluster.api.responses.pooled.protocol import (
    Embedding,
    EmbeddingList,
    PromptUsage,
    RankedDocument,
    Ranking,
    ReturnedDocument,
    Score,
    ScoreList,
    raw,
)
from engine.text.judging import score


async def embeddings_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The answer of POST /v1/embeddings; raises ApiError, InvalidRequest."""
    tally, pooled = await _collect(call, updates)
    usage = _usage(tally)
    assert isinstance(call.wanted, WantedEmbeddings)
    # A thousand vectors take a tenth of a second: others run in between.
    data = await asyncio.to_thread(_embeddings, pooled, model, call.wanted)
    return msgspec.json.encode(
        EmbeddingList(call.id, call.created, call.model, raw(data), usage, call.warnings, *tally.engine)
    )


async def ranking_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The answer of POST /v1/rerank; raises ApiError, InvalidRequest."""
    tally, pooled = await _collect(call, updates)
    wanted = call.wanted
    assert isinstance(wanted, WantedRanking)
    scores = sorted(enumerate(map(score, pooled)), key=lambda scored: -scored[1])[: wanted.top_n]
    results = [
        RankedDocument(index, each, UNSET if wanted.documents is None else ReturnedDocument(wanted.documents[index]))
        for index, each in scores
    ]
    return msgspec.json.encode(Ranking(call.id, call.model, results, _usage(tally), call.warnings, *tally.engine))


async def scores_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The answer of POST /v1/score; raises ApiError, InvalidRequest."""
    tally, pooled = await _collect(call, updates)
    data = [Score(index, score(each)) for index, each in enumerate(pooled)]
    return msgspec.json.encode(
        ScoreList(call.id, call.created, call.model, data, _usage(tally), call.warnings, *tally.engine)
    )


def _embeddings(pooled: list[bytes], model: Model, wanted: WantedEmbeddings) -> list[bytes]:
    """As JSON, one by one: the interpreter lock is held for no more than one."""
    data = []
    for index, each in enumerate(pooled):
        vector = model.embedding.vector(each, wanted.dimensions).astype("<f4")
        shown = b64encode(vector.tobytes()).decode() if wanted.is_base64 else vector.tolist()
        data.append(msgspec.json.encode(Embedding(index, shown)))
    return data


async def _collect(call: Call, updates: AsyncGenerator[Update, None]) -> tuple[Tally, list[bytes]]:
    """The numbers of each of the call's requests; raises ApiError, InvalidRequest."""
    tally = Tally(call)
    pooled: dict[int, bytes] = {}
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            for choice in update.output.outputs:
                if choice.pooled is not None:
                    pooled[update.prompt_index] = choice.pooled
    tally.close()
    return tally, [pooled[index] for index in range(len(call.requests))]


def _usage(tally: Tally) -> PromptUsage:
    return PromptUsage(tally.num_tokens(), tally.num_tokens())
