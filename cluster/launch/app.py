"""The Serve application: gateways bound to engine replicas."""

from typing import Any

from ray import serve

from cluster import owner
from cluster.gateway.deployment import GatewayDeployment
from cluster.launch.config.app_config import read_app_config
from cluster.launch.config.engines import ENGINES, MAX_ONGOING_REQUESTS, PREFILL_ENGINES, engines_of
from cluster.launch.gpus import check_gpus, planned_where_it_runs
from cluster.logs import serve_logging
from cluster.workers.placement import GATEWAY_CPUS
from engine.errors import naming

APP_NAME = "squadron"
# Of gateways: Serve gives requests to the application in the event loop that has the connections,
# not in a thread beside it, to and from which every event would be passed.
ONE_LOOP = {"env_vars": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}}


def build_app(args: dict[str, Any]) -> serve.Application:
    """The application: a gateway bound to the engines of each model. `args` are those of an
    `AppConfig`; raises InvalidConfig. Serve calls this for a file of configs/serve, and calls no
    function that has a second parameter, optional or not.
    """
    return _build(args, kills_workers=False)


def build_demonstration(args: dict[str, Any]) -> serve.Application:
    """The same with `kills_workers` (see `GatewayOptions`), for which `args` have no key. Raises
    InvalidConfig.
    """
    return _build(args, kills_workers=True)


def _build(args: dict[str, Any], *, kills_workers: bool) -> serve.Application:
    config = read_app_config(args)
    models = config.all_models()
    engine_configs, options = [], []
    for index, model in enumerate(models):
        with naming(f"models[{index}]", among=len(models)):
            engine_configs.append(planned_where_it_runs(model.engine_config(), config.max_gpus))
            options.append(model.options(engine_configs[-1]))
    least = [model.least_engines for model in models]
    check_gpus(list(zip(engine_configs, least, strict=True)), config.max_gpus)
    gateway_options = config.gateway_options(tuple(options), kills_workers=kills_workers)
    names = [config.deployment_names(kind, engine_configs) for kind in (ENGINES, PREFILL_ENGINES)]
    both = [
        engines_of(config, model, engine, name)
        for model, engine, name in zip(models, engine_configs, zip(*names, strict=True), strict=True)
    ]
    return serve.deployment(
        serve.ingress()(GatewayDeployment),
        num_replicas=config.num_gateways,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        logging_config=serve_logging(config.log_format),
        ray_actor_options={"num_cpus": GATEWAY_CPUS, "runtime_env": ONE_LOOP},
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=config.stream_grace,
    ).bind(
        [answering for answering, _ in both],
        [computing for _, computing in both],
        owner.this_process(),
        gateway_options,
    )
