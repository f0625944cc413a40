"""Where changes of the cache are published, and how many are kept."""

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kv_events_config": {"hwm": 1 << 31}}, "kv_events_config.hwm=2147483648"),
        ({"kv_events_config": {"buffer_steps": 1 << 40}}, "kv_events_config.buffer_steps=1099511627776"),
        ({"kv_events_config": {"endpoint": "tcp://*:65536"}}, "endpoint='tcp://*:65536': is not tcp://HOST:PORT, with"),
        ({"kv_events_config": {"replay_endpoint": "ipc://"}}, "kv_events_config.replay_endpoint='ipc://': is not tcp"),
        ({"kv_events_config": {"endpoint": "ipc:///x\0y"}}, "is not tcp://HOST:PORT"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)
