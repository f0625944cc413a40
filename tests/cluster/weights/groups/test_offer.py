"""What a trainer says that it will broadcast, against the demo model."""

import pytest

from cluster.checkpoint.spec import read_spec
from cluster.weights.groups.messages import Offer, Offered
from cluster.weights.groups.offer import check_offer
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.corruptions import DEMO

CONFIG = EngineConfig(model=str(DEMO))
NORM = "model.norm.weight"


def whole() -> dict[str, Offered]:
    spec = read_spec(ModelConfig.load(str(DEMO)), str(DEMO))
    return {name: Offered("bfloat16", tuple(shape)) for name, shape in spec.shapes().items()}


def test_the_models_own_tensors_will_do_in_any_order() -> None:
    check_offer(CONFIG, Offer("w", dict(reversed(whole().items()))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({NORM: Offered("bfloat16", (5,))}, r"norm.weight has shape \[5\], not \[256\]"),
        ({NORM: Offered("int8", (256,))}, "norm.weight is int8; weights may be float32, bfloat16, float16"),
        ({"model.more": Offered("bfloat16", (5,))}, "the model has no tensor model.more"),
        ({NORM: None}, r"norm.weight, of shape \[256\], is missing"),
    ],
)
def test_others_are_refused_by_name(changes: dict[str, Offered | None], message: str) -> None:
    tensors = {name: tensor for name, tensor in (whole() | changes).items() if tensor is not None}
    with pytest.raises(InvalidConfig, match=message):
        check_offer(CONFIG, Offer("w", tensors))
