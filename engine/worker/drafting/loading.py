"""Loads a draft model."""

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.worker.model import make_model
from engine.worker.ranks import LOOPBACK, Ranks, make_ranks
from engine.worker.weights.reading import load_weights
from parallel.decoder import Decoder
from parallel.rotary import cos_sin_table


def load_draft(config: EngineConfig, target: Decoder, max_model_len: int) -> Decoder | None:
    """All of the draft model of `target`, for sequences of up to max_model_len tokens, whether it
    is made for such or not; None if there is none. Raises InvalidConfig.
    """
    if (own := config.draft) is None:
        return None
    model = make_model(own, ModelConfig.load(own.model), _alone(target.device), target.device)
    read_draft(model, own, target, max_model_len)
    return model


def read_draft(model: Decoder, own: EngineConfig, target: Decoder, max_model_len: int) -> None:
    """Give the draft model of `target`, which has none, the weights that `own` names. Raises
    InvalidConfig.
    """
    load_weights(model, own, _alone(target.device), None)
    model.head.num_logits = target.head.vocab_size
    if max_model_len > model.config.max_positions:
        model.cos_sin = cos_sin_table(model.config.rope, model.head_dim, max_model_len).to(target.device)


def _alone(device: torch.device) -> Ranks:
    alone = make_ranks(1, 1, 0, device)
    alone.join(None, LOOPBACK)
    return alone
