"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's names, bodies and answers."""

import re
from typing import Annotated, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, Response

from cluster.api.models.model import Models
from cluster.api.requests.body import Bodies
from cluster.api.requests.parse import parse_object
from cluster.api.requests.validate import ignored_fields, refuse_ignored, validate
from cluster.api.routes.naming.loaders import loader_for, unload

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")
Name = Annotated[str, Field(pattern=NAME.pattern)]


class LoadAdapterRequest(BaseModel):
    """The body of POST /v1/load_lora_adapter."""

    model_config = ConfigDict(extra="allow", strict=True)

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False  # whether it may take the place of one of that name
    model: Annotated[str, Field(min_length=1)] | None = None  # whose it is; needed if several models take adapters


class UnloadAdapterRequest(BaseModel):
    """The body of POST /v1/unload_lora_adapter."""

    model_config = ConfigDict(extra="allow", strict=True)

    lora_name: Name
    lora_int_id: int | None = None  # vLLM's number of it; ignored
    model: Annotated[str, Field(min_length=1)] | None = None  # whose it is; otherwise any model's of that name


Asked = TypeVar("Asked", bound=BaseModel)


def add_routes(router: APIRouter, models: Models, bodies: Bodies) -> None:
    @router.post("/v1/load_lora_adapter")
    async def load_adapter(request: Request) -> Response:
        asked = await _read(bodies, request, LoadAdapterRequest)
        loader = loader_for(asked.model, asked.lora_name, models)
        await loader.load(asked.lora_name, asked.lora_path, in_place=asked.load_inplace)
        return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter")
    async def unload_adapter(request: Request) -> Response:
        asked = await _read(bodies, request, UnloadAdapterRequest)
        await unload(asked.lora_name, asked.model, models)
        return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")


async def _read(bodies: Bodies, request: Request, kind: type[Asked]) -> Asked:
    async def parse(body: bytes) -> Asked:
        fields = parse_object(body)
        asked = validate(kind, fields)
        refuse_ignored(ignored_fields(asked))
        return asked

    return await bodies.read(request, parse)
