"""A checkpoint's manifest: SHA-256 digests of its files and tensors, which reveal changed bits when
they are loaded.
"""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import InvalidConfig

MANIFEST_FILE = "squadron-sha256.json"


class Manifest(BaseModel):
    """Digests in hexadecimal. A weight file is its header (with the length before it) and its
    tensors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[str, str]  # by name: those beside the weights
    headers: dict[str, str]  # of weight files, by name
    tensors: dict[str, str]

    @classmethod
    def load(cls, folder: str) -> Self | None:
        """The folder's manifest; None if it has none. Raises InvalidConfig."""
        path = Path(folder) / MANIFEST_FILE
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidConfig(f"{path} is no manifest: {where or 'the file'}: {first['msg']}") from None

    def share(self, part: int, num_parts: int) -> dict[str, str]:
        """Every `num_parts`-th tensor's digest, from number `part` on: ranks that read the same
        tensors verify some each.
        """
        names = sorted(self.tensors)[part::num_parts]
        return {name: self.tensors[name] for name in names}
