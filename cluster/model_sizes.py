"""How many weights a model has and what its ranks must share evenly, from config.json: known before anything starts."""

from dataclasses import dataclass

from engine.config import ModelConfig
from engine.errors import InvalidConfig

# Architecture -> whether it has experts, and one that every row goes to.
ARCHITECTURES = {
    "Qwen2ForCausalLM": (False, False),
    "Qwen2MoeForCausalLM": (True, True),
    "Qwen3ForCausalLM": (False, False),
    "Qwen3MoeForCausalLM": (True, False),
}


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Columns and counts; zeros where a model has no such thing."""

    intermediate_size: int
    num_experts: int
    expert_size: int
    shared_size: int
    num_sparse_layers: int  # layers with experts
    num_dense_layers: int

    @property
    def dealt_out(self) -> dict[str, int]:
        """What every rank must get an equal share of, beside attention heads, by name."""
        counts = {
            "experts": self.num_experts,
            "columns of the shared expert": self.shared_size,
            "MLP columns": self.intermediate_size if self.num_dense_layers else 0,
        }
        return {name: count for name, count in counts.items() if count}

    def num_weights(self, num_layers: int, hidden: int, tp: int) -> int:
        """Of the MLPs and experts of one rank's `num_layers`, as many of them with experts as there can be."""
        num_sparse = min(num_layers, self.num_sparse_layers)
        inner = self.num_experts * self.expert_size + self.shared_size
        sparse = 3 * hidden * inner // tp + hidden * (self.num_experts + (self.shared_size > 0))
        dense = 3 * hidden * self.intermediate_size // tp
        return num_sparse * sparse + (num_layers - num_sparse) * dense


def read_sizes(model: ModelConfig, folder: str) -> ModelSizes:
    """Raises InvalidConfig naming the field of the folder's config.json."""
    if model.architecture not in ARCHITECTURES:
        raise InvalidConfig(f"architecture {model.architecture} is not served; {', '.join(ARCHITECTURES)} are")

    def integer(name: str, default: int | None = None) -> int:
        size = model.hf_config.get(name, default)
        if type(size) is not int or size < 1:
            raise InvalidConfig(f"{folder}/config.json: {name}={size!r} is not a positive integer")
        return size

    intermediate_size = integer("intermediate_size")
    has_experts, has_shared = ARCHITECTURES[model.architecture]
    if not has_experts:
        return ModelSizes(intermediate_size, 0, 0, 0, 0, model.num_hidden_layers)
    step = integer("decoder_sparse_step", 1)
    dense = model.hf_config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(index) is int for index in dense):
        raise InvalidConfig(f"{folder}/config.json: mlp_only_layers={dense!r} is no list of layers")
    num_layers = model.num_hidden_layers
    num_sparse = num_layers // step - sum(0 <= i < num_layers and (i + 1) % step == 0 for i in set(dense))
    return ModelSizes(
        intermediate_size=intermediate_size,
        num_experts=integer("num_local_experts" if "num_local_experts" in model.hf_config else "num_experts"),
        expert_size=integer("moe_intermediate_size"),
        shared_size=integer("shared_expert_intermediate_size") if has_shared else 0,
        num_sparse_layers=num_sparse,
        num_dense_layers=num_layers - num_sparse,
    )
