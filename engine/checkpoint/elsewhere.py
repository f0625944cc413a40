"""Names of models in places that nothing is fetched from: what to do instead."""

import os
import re

from engine.config import HUB_SCHEME
from engine.errors import InvalidConfig

_MODELSCOPE = re.compile(
    r"(?:modelscope|ms)://(.+)|https?://(?:www\.)?modelscope\.(?:cn|ai|com)/models/([^/?#]+/[^/?#]+).*"
)
_PAGE_OF_THE_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+).*")
_NO_BUCKET = re.compile(r"(s3|gs|gcs)://(?:/.*)?")
_WITH_REVISION = re.compile(r"(hf://[^@]+)@([^@]+)")
_VARIABLES = ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE")  # of other servers, which fetch names from there then


def check_place(model: str, name: str) -> None:
    """`model`: as it was given; `name`: the same with its scheme. Raises InvalidConfig."""
    if (found := _MODELSCOPE.fullmatch(model)) is not None:
        raise InvalidConfig(f"model={model}: {_instead(found[1] or found[2])}")
    if (found := _PAGE_OF_THE_HUB.fullmatch(model)) is not None:
        raise InvalidConfig(f"model={model} is a page of the Hugging Face hub; name the model, {HUB_SCHEME}{found[1]}")
    if (found := _NO_BUCKET.fullmatch(model)) is not None:
        raise InvalidConfig(f"model={model}: the bucket is missing; {found[1]}://BUCKET/FOLDER has one")
    if (found := _WITH_REVISION.fullmatch(name)) is not None:
        raise InvalidConfig(f"model={model}: a revision is given by --revision {found[2]}, beside {found[1]}")
    if name.startswith(HUB_SCHEME) and name != model:
        for variable in _VARIABLES:
            if os.environ.get(variable, "").lower() in ("1", "true", "yes", "on"):
                raise InvalidConfig(f"{variable} is set, and {_instead(model)}; {name} is of the Hugging Face hub")


def _instead(name: str) -> str:
    return (
        f"nothing is fetched from ModelScope: `modelscope download --model {name} --local_dir FOLDER` does, and the "
        "folder is a model here"
    )
