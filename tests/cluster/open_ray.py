"""Ray clusters of tests that ask nobody for a token."""

import pytest
from ray._private.authentication_test_utils import reset_auth_token_state

ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def open_ray(patch: pytest.MonkeyPatch, **environment: str) -> None:
    """Before a cluster is started. Ray reads the mode once a process: one that has had a cluster
    with a token would go on to ask for it, the new cluster's processes have none, and Ray would
    take it for dead whenever it starts an actor.
    """
    for name, value in (ENVIRONMENT | environment).items():
        patch.setenv(name, value)
    reset_auth_token_state()
