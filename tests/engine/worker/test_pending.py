"""What comes back of a step."""

import numpy as np

from engine.worker.worker import Worker
from tests.engine.worker.on_demo import PROMPTS, execute
from tests.engine.worker.steps import Part, make_step


def test_output_is_in_numpy_with_the_time_it_took(worker: Worker) -> None:
    output = execute(worker, make_step(3, [Part(PROMPTS[0], 0, [1, 2, 3])], epoch=2))
    assert (output.epoch, output.step) == (2, 3)
    assert (output.token_ids.dtype, output.token_ids.shape) == (np.int32, (1,))
    assert output.is_finite.tolist() == [True]
    assert (output.logprobs.shape, output.top_ids.shape) == ((0,), (0, 0))
    assert output.execute_ns.shape == (1,)
    assert output.execute_ns[0] > 0
