"""What a node needs of a model whose pipeline stages are on several nodes: the weight files that
hold something of its own stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.checkpoint.spec import read_spec
from engine.checkpoint.json_file import read_json
from engine.checkpoint.model_config import ModelConfig
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE, SINGLE_FILE, files_of_stages


@dataclass(frozen=True, slots=True)
class Share:
    """Of a node: some stages of the pipeline, not all."""

    stages: frozenset[int]
    num_stages: int

    @property
    def has_last(self) -> bool:
        """Where tokens are drawn, and a draft model guesses."""
        return self.num_stages - 1 in self.stages

    def weight_files(self, folder: Path) -> frozenset[str]:
        """Their names; `folder` holds at least the small files. Raises InvalidConfig."""
        index = folder / INDEX_FILE
        if (folder / SINGLE_FILE).exists() or not index.exists():
            return frozenset({SINGLE_FILE})
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InvalidConfig(f"{index} has no weight_map")
        spec = read_spec(ModelConfig.load(str(folder)), str(folder))
        return files_of_stages(weight_map, spec, self.stages, self.num_stages)


def shares(nodes: Sequence[str], ranks_of_stage: int) -> list[Share | None]:
    """Of each rank's node; None: it has all stages. `nodes`: by rank, stage after stage."""
    stage_of = [rank // ranks_of_stage for rank in range(len(nodes))]
    num_stages = len(nodes) // ranks_of_stage
    here = {
        node: frozenset(stage for stage, other in zip(stage_of, nodes, strict=True) if other == node) for node in nodes
    }
    return [None if len(here[node]) == num_stages else Share(here[node], num_stages) for node in nodes]
