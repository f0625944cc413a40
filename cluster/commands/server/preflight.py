"""The checks and decisions of `squadron serve` before anything starts."""

import os
from dataclasses import dataclass

from cluster.api.edge.hosts import check_open
from cluster.api.keys.key_ring import API_KEY_VARIABLE, KeyRing, given_keys
from cluster.certificate import CertificateFiles, given_files
from cluster.checkpoint.size import Plan
from cluster.commands.server.server_options import ServerOptions
from cluster.download.models import fetched, planned
from cluster.launch.machine import check_machine, check_port
from cluster.launch.room import divide
from engine.checkpoint.embedding import embedding_of
from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Start:
    """The checked configuration of a start; `config.num_threads` leaves cores for HTTP."""

    config: EngineConfig
    api_keys: tuple[str, ...]
    certificate: CertificateFiles | None


def prepare(config: EngineConfig, server: ServerOptions) -> Start:
    """Checks everything and fetches the model last, unless each node does. Prints how the cores are
    divided, if they are. Takes the API key out of the environment, which Ray's processes inherit.
    Raises InvalidConfig.
    """
    config, plan = planned(config)
    embedding_of(config)
    api_keys = given_keys(server.api_key, server.api_key_file)
    has_keys = bool(KeyRing(api_keys, server.api_key_file))
    check_open(server.host, has_keys=has_keys, insecure_no_key=server.insecure_no_key)
    certificate = given_files(server.ssl_certfile, server.ssl_keyfile)
    if certificate is not None:
        certificate.read()
    is_here = server.ray_address is None
    computes_on_cpu = is_here and check_machine(config, plan, server.num_engines) is not None
    os.environ.pop(API_KEY_VARIABLE, None)
    check_port(server.host, server.port)
    if computes_on_cpu:
        config = _leave_room(config, plan, server)
    if is_here:  # otherwise each node that has ranks fetches it
        config = fetched(config)
    return Start(config, api_keys, certificate)


def _leave_room(config: EngineConfig, plan: Plan, server: ServerOptions) -> EngineConfig:
    """The configuration with a number of threads that leaves cores for HTTP; prints a line about
    it.
    """
    weight_bytes = config.world_size * plan.weight_bytes
    room = divide(config, weight_bytes, num_engines=server.num_engines, num_gateways=server.num_gateways)
    print(room, flush=True)
    return config.model_copy(update={"num_threads": room.num_threads})
