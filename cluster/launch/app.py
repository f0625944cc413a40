"""The Serve application: gateways bound to engine replicas."""

from typing import Any

from ray import serve

from cluster import owner
from cluster.download.models import planned
from cluster.gateway.deployment import GatewayDeployment
from cluster.launch.config.app_config import AppConfig, read_app_config
from cluster.launch.gpus import check_gpus
from cluster.logs import serve_logging
from cluster.replica.delta_channel.server import BUSY_TURNS, TURN_SECONDS
from cluster.replica.deployment import END_SECONDS, EngineDeployment
from cluster.workers.placement import make_bundles
from engine.config import EngineConfig

APP_NAME = "squadron"
ENGINES = EngineDeployment.__name__
MAX_ONGOING_REQUESTS = 100_000  # admission is up to the engine: Serve's own errors are not what clients expect
# Of gateways: Serve gives requests to the application in the event loop that has the connections,
# not in a thread beside it, to and from which every event would be passed.
ONE_LOOP = {"env_vars": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}}
NOTICE_SECONDS = 1.0  # in which an engine that has nothing to do sees that Serve wants it to end


def build_app(args: dict[str, Any], *, kills_workers: bool = False) -> serve.Application:
    """The application: a gateway bound to the engines of each model. `args` are those of an
    `AppConfig`; raises InvalidConfig. `kills_workers`: see `GatewayOptions`; Serve, which calls
    this for a file of configs/serve, gives `args` alone, and these have no such key.
    """
    config = read_app_config(args)
    models = config.all_models()
    engine_configs = [planned(model.engine_config())[0] for model in models]
    options = tuple(model.options(engine) for model, engine in zip(models, engine_configs, strict=True))
    least = [model.least_engines for model in models]
    check_gpus(list(zip(engine_configs, least, strict=True)), config.max_gpus)
    gateway_options = config.gateway_options(options, kills_workers=kills_workers)
    names = config.deployment_names(ENGINES, engine_configs)
    engines = [
        _engines(name, config, model.replicas(), engine)
        for model, engine, name in zip(models, engine_configs, names, strict=True)
    ]
    return serve.deployment(
        serve.ingress()(GatewayDeployment),
        num_replicas=config.num_gateways,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        logging_config=serve_logging(config.log_format),
        ray_actor_options={"num_cpus": 0.1, "runtime_env": ONE_LOOP},
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=config.stream_grace,
    ).bind(
        engines,
        owner.this_process(),
        gateway_options,
    )


def _engines(name: str, config: AppConfig, replicas: dict[str, Any], engine_config: EngineConfig) -> serve.Application:
    return serve.deployment(
        EngineDeployment,
        name=name,
        **replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_constructor_retry_count=1,  # a start that failed once would fail again
        logging_config=serve_logging(
            config.log_format, logs_calls=False
        ),  # no log line per call: there are several per second
        health_check_period_s=0.5,
        # Three consecutive checks have to fail. Gateways notice dead replicas much sooner; this
        # must not end one that they know to be busy.
        health_check_timeout_s=BUSY_TURNS * TURN_SECONDS / 3,
        graceful_shutdown_wait_loop_s=NOTICE_SECONDS,
        graceful_shutdown_timeout_s=config.patience + END_SECONDS,
        **make_bundles(engine_config),
    ).bind(engine_config, owner.this_process(), config.telemetry, config.patience)
