"""The checks and decisions of `squadron serve` before anything starts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.api.edge.hosts import check_open
from cluster.api.keys.key_ring import API_KEY_VARIABLE, KeyRing, given_keys
from cluster.certificate import CertificateFiles, given_files
from cluster.commands.server.configure import check_application
from cluster.commands.server.models import ModelStart, check_folders, check_machines, check_names, leave_room
from cluster.commands.server.server_options import ServerOptions
from cluster.download.models import all_fetched, all_planned
from cluster.launch.machine import check_port


@dataclass(frozen=True, slots=True)
class Start:
    """The checked configuration of a start; each `config.num_threads` leaves cores for HTTP and for
    the other models.
    """

    models: tuple[ModelStart, ...]
    api_keys: tuple[str, ...]
    certificate: CertificateFiles | None


def prepare(models: Sequence[ModelStart], server: ServerOptions) -> Start:
    """Checks everything and fetches the models last, unless each node does. Prints how the cores
    are divided, if they are. Takes the API key out of the environment, which Ray's processes
    inherit. Raises InvalidConfig.
    """
    outlines = all_planned([model.config for model in models])
    models = [model.with_config(config) for model, (config, _) in zip(models, outlines, strict=True)]
    plans = [plan for _, plan in outlines]
    check_names(models, server.aliases)
    api_keys = given_keys(server.api_key, server.api_key_file)
    has_keys = bool(KeyRing(api_keys, server.api_key_file))
    check_open(server.host, has_keys=has_keys, insecure_no_key=server.insecure_no_key)
    certificate = given_files(server.ssl_certfile, server.ssl_keyfile)
    if certificate is not None:
        certificate.read()
    check_application(server, models, api_keys)
    is_here = server.ray_address is None
    if is_here:
        check_folders(models)
    computes_on_cpu = is_here and check_machines(models, plans)
    os.environ.pop(API_KEY_VARIABLE, None)
    check_port(server.host, server.port)
    if computes_on_cpu:
        models = leave_room(models, plans, server.num_gateways)
    if is_here:  # otherwise each node that has ranks fetches it
        configs = all_fetched([model.config for model in models])
        models = [model.with_config(config) for model, config in zip(models, configs, strict=True)]
    return Start(tuple(models), api_keys, certificate)
