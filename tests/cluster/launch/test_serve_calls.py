"""Why Serve did not start the application."""

from cluster.launch.serve_calls import last_reason


def test_the_reason_is_ours_whatever_serve_says_after_it() -> None:
    slow = "Deployment 'GatewayDeployment' has 1 replicas that take long.\nThis may be caused by a slow __init__.\n"
    assert last_reason(f"failed\n  engine.errors.InvalidConfig: no such thing\n{slow}") == "no such thing"
    assert last_reason(slow) == "This may be caused by a slow __init__."
