"""The environment of Ray's processes, and their connections."""

import logging
import os
from typing import Any

from cluster.launch.packages import ROOT

# Environment variables that Ray and its processes read when they start; existing values are kept.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # otherwise workers run at nice 15
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # One Python process for each core would start with the cluster, 80 MB and a second each, and
    # none of them is used: ours have an environment of their own.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps CUDA_VISIBLE_DEVICES as it is
    # On a busy machine, agents that raylets need may be late. 30 seconds are Ray's default.
    "RAY_agent_register_timeout_ms": "300000",
    # Useful only to a dashboard, which such a cluster does not have.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    # glibc's: each of some forty threads would have a heap of its own, which never shrinks below
    # its own peak.
    "MALLOC_ARENA_MAX": "2",
}


def set_environment() -> None:
    """Before Ray starts."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def quiet_options() -> dict[str, Any]:
    """For `ray.init`: workers find our packages, and their logs are not printed here."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}},
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
