"""Whether anything listens, and that steps which need Ray are left out without it."""

import socket

import pytest

from cluster.launch.node.within import answers, do_within


def test_an_address_answers_while_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
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
