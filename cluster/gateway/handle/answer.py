"""From an output to a dict."""

from typing import Any

from cluster.api.errors import as_api_error, request_failed
from engine.errors import SquadronError
from engine.outputs import CompletionOutput, PositionLogprobs, RequestOutput


def answer(output: RequestOutput) -> dict[str, Any]:
    """A delta, or the whole."""
    error = None
    if output.error is not None:
        told = request_failed(output.error, output.error_code or "request_failed")
        error = {"message": output.error, "type": told.type, "param": None, "code": told.code}
    return {
        "request_id": output.request_id,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [_choice(choice) for choice in output.outputs],
        "finished": output.finished,
        "error": error,
        "system_fingerprint": output.fingerprint,
        "weights_version": output.weights_version,
    }


def _choice(choice: CompletionOutput) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "first_index": choice.first_index,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "logprobs": None if choice.logprobs is None else [_logprobs(position) for position in choice.logprobs],
    }


def _logprobs(position: PositionLogprobs) -> dict[int, list[Any]]:
    return {token_id: [token.logprob, token.rank, token.decoded_token] for token_id, token in position.items()}


def failed(request_id: str, error: SquadronError) -> dict[str, Any]:
    """In place of an answer."""
    told = as_api_error(error)
    body = {"message": told.message, "type": told.type, "param": told.param, "code": told.code}
    return {
        "request_id": request_id,
        "prompt_token_ids": [],
        "outputs": [],
        "finished": True,
        "error": body,
        "system_fingerprint": None,
        "weights_version": None,
    }
