"""What `model` names: a folder of this machine, or a model of the hub or of an object store."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

HUB_SCHEME = "hf://"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def remote_name(model: str) -> str | None:
    """With its scheme, as in hf://ORGANISATION/MODEL and s3://BUCKET/FOLDER; None for a path of
    this machine. ORGANISATION/MODEL is a name of the hub if there is no folder ORGANISATION here.
    """
    if model.startswith("file:"):
        return None
    if "://" in model:
        return model.rstrip("/")
    if _HUB_NAME.fullmatch(model) and not Path(model).parent.exists():
        return HUB_SCHEME + model
    return None


def is_hub_name(name: str) -> bool:
    """Whether it has the form ORGANISATION/MODEL."""
    return _HUB_NAME.fullmatch(name) is not None


def local_path(model: str) -> str:
    """A path of this machine, also where it is written as file://..."""
    return unquote(urlsplit(model).path) if model.startswith("file:") else model
