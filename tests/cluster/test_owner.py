"""Who may end an application."""

import pickle

import pytest

from cluster.owner import NotOwner, Owner, this_process


def test_the_process_that_built_it_may_and_its_replicas_know() -> None:
    owner = this_process()
    pickle.loads(pickle.dumps(owner)).check(this_process(), "to stop")
    assert owner.token not in repr(owner)


@pytest.mark.parametrize("caller", [None, "", Owner(""), Owner("another"), Owner("ä")])
def test_nobody_else_may(caller: object) -> None:
    with pytest.raises(NotOwner, match="to stop an engine is for the process that built the application"):
        this_process().check(caller, "to stop an engine")
