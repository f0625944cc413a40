import logging
import re

import pytest

from cluster.workers.phases import Phases


def test_an_epochs_phases_are_one_line_in_order(caplog: pytest.LogCaptureFixture) -> None:
    phases = Phases()
    phases.end("placed")
    phases.end("joined")
    with caplog.at_level(logging.INFO, "squadron.executor"):
        phases.log(3)
    (line,) = caplog.messages
    assert re.fullmatch(r"epoch 3 begins; placed \d+\.\d\d s, joined \d+\.\d\d s", line)
