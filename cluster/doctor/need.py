"""What the engines of a configuration need of a cluster."""

from dataclasses import dataclass, replace

from cluster.checkpoint.plan import check_device
from cluster.checkpoint.size import Plan
from cluster.download.models import planned
from cluster.launch.config.app_config import read_app_config
from cluster.launch.config.model_config import ModelConfig
from cluster.launch.gpus import settled
from cluster.workers.nodes import Node, is_meant, num_places
from cluster.workers.placement import has_gpus
from engine.config import EngineConfig
from engine.errors import InvalidConfig, naming

GIB = 1 << 30
BUILD_APP = ("cluster.launch:build_app", "cluster.launch.build_app")


@dataclass(frozen=True, slots=True)
class Need:
    """Of a model: as many engines as there are at least."""

    config: EngineConfig
    plan: Plan
    num_engines: int
    drain_bytes: int = 0  # of a node's /dev/shm, for blocks that an engine which ends hands over
    prefill_bytes: int = 0  # likewise, for those of prefill engines
    max_gpus: int | None = None  # see `settled`

    @property
    def num_ranks(self) -> int:
        return self.num_engines * self.config.world_size

    def settled(self) -> "Need":
        """As serving settles it, on the cluster that this process is connected to. Raises
        InvalidConfig for what that would refuse.
        """
        config = settled(self.config, self.max_gpus)
        check_device(config, config.device, self.plan.dtypes)
        return replace(self, config=config)

    def __str__(self) -> str:
        engines = f"{self.num_engines} engine(s) of {self.config.world_size} rank(s)"
        return f"{self.config.model_name}: {engines}"


def need_of(config: EngineConfig, own: ModelConfig, max_gpus: int | None) -> Need:
    """Raises InvalidConfig."""
    config, plan = planned(config)
    need = Need(config, plan, own.least_engines, max_gpus=max_gpus)
    if config.kv_offloading_path is not None or not config.moves_blocks:
        return need  # they go by way of that path, or nowhere
    prefill = own.prefill_memory if own.num_prefill_engines else 0
    return replace(need, drain_bytes=int(own.drain_memory * GIB), prefill_bytes=int(prefill * GIB))


def may_be_on(node: Node, config: EngineConfig) -> bool:
    """Whether one of its engines may."""
    return is_meant(node, config) and (not has_gpus(config) or num_places(config, [node]) > 0)


def needs_of_serve_file(values: dict[str, object], path: str) -> list[Need]:
    """Of each model of our applications in a file of configs/serve. Raises InvalidConfig."""
    applications = values.get("applications")
    needs = []
    for application in applications if isinstance(applications, list) else []:
        if isinstance(application, dict) and application.get("import_path") in BUILD_APP:
            args = application.get("args") or {}
            if not isinstance(args, dict):
                raise InvalidConfig(f"{path}: args must map names of options to values, got a {type(args).__name__}")
            app = read_app_config({str(name): value for name, value in args.items()})
            for index, model in enumerate(models := app.all_models()):
                with naming(f"models[{index}]", among=len(models)):
                    needs.append(need_of(model.engine_config(), model, app.max_gpus))
    if not needs:
        raise InvalidConfig(f"{path} has no application whose import_path is {BUILD_APP[0]}")
    return needs


def http_port(values: dict[str, object]) -> object:
    """Of a file of configs/serve."""
    options = values.get("http_options")
    return options.get("port", 8000) if isinstance(options, dict) else 8000
