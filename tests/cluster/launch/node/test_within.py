"""Whether anything listens, and that steps which need Ray are left out without it."""

import socket

import pytest
from ray._common.network_utils import build_address

from cluster.launch.node.within import answers, do_within
from tests.listeners import IPV6_LOOPBACK, needs_ipv6


def test_an_address_answers_while_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)


@needs_ipv6
def test_an_ipv6_address_may_stand_in_brackets() -> None:
    """As Ray gives it."""
    with socket.create_server((IPV6_LOOPBACK, 0), family=socket.AF_INET6) as listener:
        address = build_address(IPV6_LOOPBACK, listener.getsockname()[1])
        assert answers(address)
    assert not answers(address)


def test_no_step_runs_without_a_connection_to_ray() -> None:
    """Ray would connect to any other cluster of the machine."""
    ran: list[bool] = []
    do_within([lambda: ran.append(True)], seconds=60.0)
    assert ran == []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_step_that_ray_ends_is_followed_by_the_next(error: type[BaseException]) -> None:
    ran: list[bool] = []

    def end() -> None:
        raise error

    do_within([end, lambda: ran.append(True)], seconds=60.0)
    assert ran == [True]
