"""The deployments of a model's engines: of those that answer, and of those that compute prompts."""

from typing import Any

from ray import serve

from cluster import owner
from cluster.launch.config.app_config import AppConfig
from cluster.launch.config.blocks import divided, leaving, model_secret
from cluster.launch.config.model_config import ModelConfig
from cluster.logs import serve_logging
from cluster.replica.delta_channel.server import BUSY_TURNS, TURN_SECONDS
from cluster.replica.deployment import END_SECONDS, EngineDeployment
from cluster.replica.leaving.left_blocks import LEAVE_SECONDS
from cluster.workers.placement import make_bundles
from engine.config import EngineConfig

ENGINES = EngineDeployment.__name__
PREFILL_ENGINES = "EnginePrefillDeployment"
MAX_ONGOING_REQUESTS = 100_000  # admission is up to the engine: Serve's own errors are not what clients expect
NOTICE_SECONDS = 1.0  # in which an engine that has nothing to do sees that Serve wants it to end


def engines_of(
    config: AppConfig, model: ModelConfig, engine: EngineConfig, names: tuple[str, str]
) -> tuple[serve.Application, serve.Application | None]:
    """Those that answer, and those that compute prompts for them, if there are to be any. `names`:
    of the two deployments. Raises InvalidConfig.
    """
    token, secret = owner.this_process().token, model_secret(engine.model_name)
    engine = leaving(engine, model.drain_memory, secret)
    if not model.num_prefill_engines:
        return _deployed(names[0], config, model.replicas(), engine), None
    engine = engine.model_copy(update={"kv_peer_transport": model.prefill_transport})
    answering, computing = divided(engine, model.prefill_memory, token, secret)
    replicas = {"num_replicas": model.num_prefill_engines}
    return _deployed(names[0], config, model.replicas(), answering), _deployed(names[1], config, replicas, computing)


def _deployed(name: str, config: AppConfig, replicas: dict[str, Any], engine_config: EngineConfig) -> serve.Application:
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
        graceful_shutdown_timeout_s=config.patience + LEAVE_SECONDS + END_SECONDS,
        **make_bundles(engine_config),
    ).bind(engine_config, owner.this_process(), config.telemetry, config.patience)
