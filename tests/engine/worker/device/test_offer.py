"""What a process says that it can compute with."""

import pytest

from engine.errors import InvalidConfig
from engine.worker.device.offer import offer, use
from ops import cpu
from tests.engine.worker.on_demo import make_config


def test_a_backend_by_name_is_offered_with_the_levels_it_has() -> None:
    offered = offer(make_config())
    assert (offered.backend, offered.reason) == ("reference", None)
    assert len(offered.levels) == 1
    with pytest.raises(InvalidConfig, match="there is no ops backend 'none'"):
        offer(make_config().model_copy(update={"ops_backend": "none"}))


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))
def test_a_level_that_was_offered_can_be_used() -> None:
    offered = offer(make_config().model_copy(update={"ops_backend": "cpu"}))
    use(offered.levels[0])
