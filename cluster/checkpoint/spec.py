"""The description of a checkpoint's model; errors name the configuration's fields."""

from engine.checkpoint.model_config import ModelConfig
from engine.errors import InvalidConfig
from parallel.errors import UnsupportedModel
from parallel.spec import read
from parallel.spec.decoder import DecoderConfig


def read_spec(model: ModelConfig, folder: str) -> DecoderConfig:
    """The model that config.json of `folder` describes; raises InvalidConfig naming folder and
    field.
    """
    try:
        return read(model.hf_config)
    except UnsupportedModel as error:
        raise InvalidConfig(f"{folder}: {error}") from None
