"""What a trainer says of the tensors that it will broadcast, checked before any is sent."""

from cluster.checkpoint.spec import read_spec
from cluster.weights.groups.messages import Offer
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from parallel.errors import InvalidCheckpoint
from parallel.spec.stored import as_the_model_names, check_form, check_names, refuse_published


def check_offer(config: EngineConfig, offer: Offer) -> None:
    """Raises InvalidConfig naming the tensor that the model does not have, or lacks, or that is of
    another shape or not of floating point.
    """
    spec = read_spec(ModelConfig.load(config.model), config.model)
    shapes, offered = spec.shapes(), as_the_model_names(offer.tensors)
    try:
        refuse_published(spec)
        check_names(offered.keys(), shapes, spec.unused)
        for name, tensor in offered.items():
            check_form(name, tensor.shape, tensor.dtype, shapes.get(name, tensor.shape))
    except InvalidCheckpoint as error:
        raise InvalidConfig(str(error)) from None
