"""The models that are measured and estimated, as config.json has them."""

from cluster.checkpoint.dummy import hf_config
from cluster.checkpoint.shapes import SHAPES as PUBLISHED
from cluster.checkpoint.shapes import Shape

SHAPES = {
    "0.5b": hf_config(PUBLISHED["qwen2.5-0.5b"]),
    "7b": hf_config(PUBLISHED["qwen2.5-7b"]),
    "quick": hf_config(Shape(128, 2, 4, 2, 96, 10240, True)),  # for rehearsals
}
