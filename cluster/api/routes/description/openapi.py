"""The API's OpenAPI description, from the types that parse requests and write answers."""

from typing import Any, get_args

import msgspec
from pydantic.json_schema import models_json_schema

from cluster.api.batches import Batch, FileDeleted, FileObject, Page
from cluster.api.dialects import types
from cluster.api.requests.pooled.protocol import EmbeddingRequest, RerankRequest, ScoreRequest
from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from cluster.api.responses import protocol
from cluster.api.responses.pooled.protocol import EmbeddingList, Ranking, ScoreList
from cluster.api.routes.batch.batches import BatchRequest
from cluster.api.routes.description.operations import (
    REFERENCE,
    as_json,
    control_paths,
    generation,
    in_path,
    monitoring_paths,
    operation,
    page_paths,
    question,
    reference,
)
from cluster.api.routes.naming.adapters import LoadAdapterRequest, UnloadAdapterRequest

REQUESTS = (
    *(ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest, ScoreRequest, BatchRequest),
    *(LoadAdapterRequest, UnloadAdapterRequest),
    *types.REQUESTS,
)
ANSWERS = (
    *(protocol.ChatCompletion, protocol.ChatCompletionChunk, protocol.Completion),
    *(EmbeddingList, Ranking, ScoreList, protocol.ModelCard, protocol.ModelList),
    *(Batch, FileDeleted, FileObject, Page),
    *types.ANSWERS,
)


def _any_of(union: Any) -> dict[str, Any]:
    return {"oneOf": [{"$ref": REFERENCE.format(kind.__name__)} for kind in get_args(union)]}


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# Anthropic's form; param and code are ours.
_MESSAGES_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {"type": {"const": "error"}, **_ERROR["properties"]},
}
# A stream's events, each of which has its name as `type`.
_EVENTS = {name: _any_of(union) for name, union in types.EVENTS.items()}

_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "Of a stream of this very request that broke: the last event that came; the answer is the rest",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]+:[1-9][0-9]{0,8}$"},
}


def describe(
    version: str,
    *,
    needs_key: bool,
    has_streams: bool,
    has_batches: bool,
    has_loader: bool,
    has_killer: bool,
    has_controls: bool = False,
) -> dict[str, Any]:
    """An OpenAPI 3.1 document; `has_streams`: broken streams can be resumed; `has_batches`: there
    are files and batches; `has_loader`: adapters can be loaded; `has_killer`: the page may have a
    worker killed; `has_controls`: engines can pause and sleep.
    """
    _, requests = models_json_schema(
        [(kind, "validation") for kind in REQUESTS], ref_template=REFERENCE.format("{model}")
    )
    _, responses = msgspec.json.schema_components(ANSWERS, ref_template=REFERENCE.format("{name}"))
    paths = _paths() | page_paths() | monitoring_paths(has_killer=has_killer)
    if has_streams:
        for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
            paths[route]["post"]["parameters"] = [_LAST_EVENT_ID]
    paths |= (_batch_paths() if has_batches else {}) | (_adapter_paths() if has_loader else {})
    paths |= control_paths() if has_controls else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Squadron", "version": version},
        "paths": paths,
        "components": {
            "schemas": requests["$defs"] | responses | _EVENTS | {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": list[str]()}] if needs_key else [],
    }


def _paths() -> dict[str, Any]:
    """That there are always."""
    return {
        "/v1/chat/completions": {"post": generation("ChatRequest", "ChatCompletion", "ChatCompletionChunk")},
        "/v1/completions": {"post": generation("CompletionRequest", "Completion", "Completion")},
        "/v1/embeddings": {"post": question("EmbeddingRequest", "EmbeddingList")},
        **{f"{start}/rerank": {"post": question("RerankRequest", "Ranking")} for start in ("", "/v1", "/v2")},
        **{f"{start}/score": {"post": question("ScoreRequest", "ScoreList")} for start in ("", "/v1")},
        "/v1/responses": {"post": generation("ResponsesRequest", "ResponseAnswer", "ResponseEvent")},
        "/v1/responses/input_tokens": {"post": question("ResponsesRequest", "InputTokens")},
        "/v1/responses/{response_id}": {
            "get": operation(as_json(reference("ResponseAnswer"))) | in_path("response_id"),
            "delete": operation(as_json(reference("ResponseDeleted"))) | in_path("response_id"),
        },
        "/v1/messages": {"post": generation("MessagesRequest", "MessageAnswer", "MessageEvent", "MessagesError")},
        "/v1/messages/count_tokens": {"post": question("MessagesPrompt", "TokenCount", "MessagesError")},
        "/tokenize": {"post": question("TokenizeRequest", "Tokenized")},
        "/detokenize": {"post": question("DetokenizeRequest", "Detokenized")},
        "/tokenizer_info": {"get": operation(as_json({"type": "object"}))},
        "/v1/models": {"get": operation(as_json(reference("ModelList")))},
        "/v1/models/{model_id}": {"get": operation(as_json(reference("ModelCard"))) | in_path("model_id")},
        "/version": {"get": operation(as_json({"type": "object"}))},
    }


def _batch_paths() -> dict[str, Any]:
    """Of files and batches."""
    form = {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
    }
    upload = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    one_file = in_path("file_id")
    one_batch = in_path("batch_id")
    file, batch, page = (operation(as_json(reference(name))) for name in ("FileObject", "Batch", "Page"))
    content = operation({"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}})
    asked = {"requestBody": {"required": True, "content": as_json(reference("BatchRequest"))}}
    return {
        "/v1/files": {"post": file | {"requestBody": upload}, "get": page},
        "/v1/files/{file_id}": {
            "get": file | one_file,
            "delete": operation(as_json(reference("FileDeleted"))) | one_file,
        },
        "/v1/files/{file_id}/content": {"get": content | one_file},
        "/v1/batches": {"post": batch | asked, "get": page},
        "/v1/batches/{batch_id}": {"get": batch | one_batch},
        "/v1/batches/{batch_id}/cancel": {"post": batch | one_batch},
    }


def _adapter_paths() -> dict[str, Any]:
    """Of adapters that come and go."""
    done = operation({"text/plain": {"schema": {"type": "string"}}})
    return {
        f"/v1/{verb}_lora_adapter": {
            "post": done | {"requestBody": {"required": True, "content": as_json(reference(request))}}
        }
        for verb, request in (("load", "LoadAdapterRequest"), ("unload", "UnloadAdapterRequest"))
    }
