"""The description of a checkpoint's model; errors name the configuration's fields."""

from pathlib import Path

from engine.checkpoint.json_file import read_json
from engine.checkpoint.model_config import ModelConfig
from engine.checkpoint.model_folder import check_model_folder
from engine.errors import InvalidConfig
from parallel.errors import UnsupportedModel
from parallel.spec import architecture, read
from parallel.spec.decoder import DecoderConfig


def check_architecture(folder: str) -> None:
    """Before other fields are read, which others name differently. Raises InvalidConfig."""
    check_model_folder(folder)
    try:
        architecture(read_json(Path(folder) / "config.json"))
    except UnsupportedModel as error:
        raise InvalidConfig(f"{folder}: {error}") from None


def read_spec(model: ModelConfig, folder: str) -> DecoderConfig:
    """The model that config.json of `folder` describes; raises InvalidConfig naming folder and
    field.
    """
    try:
        return read(model.hf_config)
    except UnsupportedModel as error:
        raise InvalidConfig(f"{folder}: {error}") from None
