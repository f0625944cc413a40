"""One rank with the demo checkpoint, from its prompts to its tokens."""

from engine.worker.worker import Worker
from tests.engine.worker.on_demo import PROMPTS, execute
from tests.engine.worker.steps import generate


def test_chunks_and_neighbours_change_no_token(worker: Worker) -> None:
    together = generate(lambda request: execute(worker, request), PROMPTS, 4)
    in_chunks = generate(lambda request: execute(worker, request), PROMPTS, 4, chunk=9)
    alone = [generate(lambda request: execute(worker, request), [prompt], 4)[0] for prompt in PROMPTS]
    assert together == in_chunks == alone
    assert len(set(map(tuple, together))) == 3
