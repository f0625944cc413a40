"""Which of several models' loaders changes an adapter."""

from collections.abc import Iterable

from cluster.api.errors import ApiError
from cluster.api.models.model import Models
from cluster.api.requests.fields import as_brief_json
from cluster.api.service import AdapterLoader
from engine.errors import InvalidRequest


def loader_for(name: str | None, adapter: str, models: Models) -> AdapterLoader:
    """Of the model of that name, for a new adapter. Raises ApiError, InvalidRequest."""
    loaders = _loaders(name, models)
    if len(loaders) > 1:
        message = f"Several models take adapters: {_listed(loaders)}; set model to one of them"
        raise InvalidRequest(message, param="model", code="missing_required_parameter")
    ((name, loader),) = loaders.items()
    own = {each.name for each in models[name].model.adapters}
    if adapter not in own and adapter in models.names():
        message = f"{as_brief_json(adapter)} is the name of a model"
        raise InvalidRequest(message, param="lora_name")
    return loader


async def unload(adapter: str, name: str | None, models: Models) -> None:
    """By the loader of the model that has the adapter, or only by that of this name. Raises
    ApiError (Unavailable).
    """
    models.check_joined(adapter)
    loaders = list(_loaders(name, models).values())
    for loader in loaders:
        try:
            return await loader.unload(adapter)
        except ApiError as error:
            if error.code != "adapter_not_found" or loader is loaders[-1]:
                raise


def _loaders(name: str | None, models: Models) -> dict[str, AdapterLoader]:
    """Each model's that takes adapters, or of the one of this name. Raises ApiError."""
    loaders = {served.model.name: served.loader for served in models if served.loader is not None}
    if name is None:
        return loaders
    if name not in loaders:
        message = f"No model {as_brief_json(name)} takes adapters here; there is {_listed(loaders)}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return {name: loaders[name]}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(as_brief_json, names))
