"""What a trainer says of the tensors that it will broadcast, checked before any is sent."""

from cluster.checkpoint.spec import read_spec
from cluster.weights.groups.messages import Offer
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from parallel.spec.stored import as_the_model_names

DTYPES = ("float32", "bfloat16", "float16")


def check_offer(config: EngineConfig, offer: Offer) -> None:
    """Raises InvalidConfig naming the tensor that the model does not have, or lacks, or that is of
    another shape or not of floating point.
    """
    spec = read_spec(ModelConfig.load(config.model), config.model)
    if spec.scheme is not None:
        raise InvalidConfig(
            f"the checkpoint is quantized ({spec.scheme.name}), and its weights change by a folder of the same form"
        )
    shapes, offered = spec.shapes(), as_the_model_names(offer.tensors)
    for name in sorted(offered.keys() - shapes.keys() - spec.unused):
        raise InvalidConfig(f"the model has no tensor {name}")
    for name, shape in shapes.items():
        if name not in offered:
            raise InvalidConfig(f"tensor {name}, of shape {list(shape)}, is missing")
        if tuple(offered[name].shape) != tuple(shape):
            raise InvalidConfig(f"tensor {name} has shape {list(offered[name].shape)}, not {list(shape)}")
    for name, tensor in offered.items():
        if tensor.dtype not in DTYPES:
            raise InvalidConfig(f"tensor {name} is {tensor.dtype}; weights may be {', '.join(DTYPES)}")
