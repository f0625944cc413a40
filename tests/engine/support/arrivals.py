"""Requests that come to an `LLMEngine`, with token ids for prompts."""

from dataclasses import fields
from typing import Any

from engine.core.llm_engine import LLMEngine
from engine.request import Arrival, Request, Resume
from engine.sampling_params import SamplingParams

_OF_RESUME = {field.name for field in fields(Resume)}


def add_request(
    engine: LLMEngine, request_id: str, prompt_token_ids: list[int], params: SamplingParams, **options: Any
) -> None:
    """`options`: fields of `Request` and of `Resume`, and a `matcher`."""
    matcher = options.pop("matcher", None)
    resume = Resume(**{name: options.pop(name) for name in _OF_RESUME & options.keys()})
    request = Request(request_id, prompt_token_ids, params, resume=resume, **options)
    engine.add_request(Arrival(request, prompt_token_ids, matcher=matcher))


def check_request(engine: LLMEngine, prompt_token_ids: list[int], params: SamplingParams) -> None:
    """Raises InvalidRequest if it could never run."""
    engine.admission.check(Arrival(Request("r", prompt_token_ids, params), prompt_token_ids))
