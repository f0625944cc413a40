"""What `LLM.embed` and `LLM.score` return, under vLLM's names, made of an engine's outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import InputProcessingError, InvalidRequest
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput
from engine.pooling import Pooling, check_dimensions
from engine.request import Prompt
from engine.text.judging import NO_ANSWERS, judging, judging_prompt, score

# The whole answer to each; the flag: with what the tokenizer adds around a text.
Run = Callable[[list[Prompt], Pooling, bool], list[RequestOutput]]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    score: float  # from 0 to 1


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True


def embed(engine: AsyncEngine, prompts: list[Prompt], dimensions: int | None, run: Run) -> list[EmbeddingRequestOutput]:
    """See `LLM.embed`."""
    check_dimensions(dimensions, engine.model_config.hidden_size)
    return [
        EmbeddingRequestOutput(
            output.request_id,
            EmbeddingOutput(engine.embedding.vector(_pooled(output), dimensions).tolist()),
            output.prompt_token_ids,
        )
        for output in run(prompts, engine.embedding.pooling, True)
    ]


def judge(
    engine: AsyncEngine, query: str, documents: Sequence[str], instruction: str | None, run: Run
) -> list[ScoringRequestOutput]:
    """See `LLM.score`."""
    pooling = judging(engine.tokenizer)
    if pooling is None:
        raise InvalidRequest(NO_ANSWERS, param="model", code="unsupported_value")
    prompts: list[Prompt] = [judging_prompt(query, document, instruction) for document in documents]
    return [
        ScoringRequestOutput(output.request_id, ScoringOutput(score(_pooled(output))), output.prompt_token_ids)
        for output in run(prompts, pooling, False)
    ]


def _pooled(output: RequestOutput) -> bytes:
    if output.outputs[0].pooled is None:
        raise InputProcessingError(f"{output.request_id} has no numbers: {output.error}")
    return output.outputs[0].pooled
